"""Eviction policies by name, as settings and benchmarks know them."""

from collections.abc import Callable
from typing import Any

from moonpool.cache.base import EvictionPolicy
from moonpool.cache.fifo import FifoPolicy
from moonpool.cache.lru import LruPolicy

_POLICIES: dict[str, Callable[[], EvictionPolicy[Any]]] = {"lru": LruPolicy, "fifo": FifoPolicy}

POLICY_NAMES: tuple[str, ...] = tuple(_POLICIES)


def make_policy(name: str) -> EvictionPolicy[Any]:
    """A fresh policy. ValueError names the ones there are."""
    if name not in _POLICIES:
        raise ValueError(f"eviction policy {name!r} is none of {', '.join(POLICY_NAMES)}")
    return _POLICIES[name]()
