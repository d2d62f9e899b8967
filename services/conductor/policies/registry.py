"""Scheduling policies by name, as settings and the simulator know them."""

from collections.abc import Callable

from services.conductor.policies.base import SchedulingPolicy
from services.conductor.policies.global_cache import GlobalPolicy
from services.conductor.policies.load_balance import LoadBalancePolicy
from services.conductor.policies.local import LocalNaivePolicy, LocalPolicy
from services.conductor.policies.longest_prefix import LongestPrefixPolicy
from services.conductor.policies.ours import OurPolicy
from services.conductor.policies.random import RandomPolicy

_POLICIES: dict[str, Callable[[int, float], SchedulingPolicy]] = {
    "random": lambda seed, threshold: RandomPolicy(seed),
    "load-balance": lambda seed, threshold: LoadBalancePolicy(),
    "longest-prefix": lambda seed, threshold: LongestPrefixPolicy(),
    "local-naive": lambda seed, threshold: LocalNaivePolicy(),
    "local": lambda seed, threshold: LocalPolicy(),
    "global": lambda seed, threshold: GlobalPolicy(threshold),
    "ours": lambda seed, threshold: OurPolicy(),
}

POLICY_NAMES: tuple[str, ...] = tuple(_POLICIES)


def make_policy(name: str, seed: int = 0, threshold: float = 1.0) -> SchedulingPolicy:
    """A fresh policy. `threshold`: of `global`. ValueError names the policies there are."""
    if name not in _POLICIES:
        raise ValueError(f"policy {name!r} is none of {', '.join(POLICY_NAMES)}")
    return _POLICIES[name](seed, threshold)
