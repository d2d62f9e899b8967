"""Eviction policies by name, as settings and benchmarks know them."""

from collections.abc import Callable
from typing import Any

from moonpool.cache.arc import ArcPolicy
from moonpool.cache.base import EvictionPolicy
from moonpool.cache.fifo import FifoPolicy
from moonpool.cache.lfu import LfuPolicy
from moonpool.cache.lru import LruPolicy
from moonpool.cache.ours import OurPolicy
from moonpool.cache.s3fifo import S3FifoPolicy
from moonpool.cache.sieve import SievePolicy
from moonpool.cache.wtinylfu import WTinyLfuPolicy

# Each takes the number of blocks that it will hold, 0 when that is not known.
_POLICIES: dict[str, Callable[[int], EvictionPolicy[Any]]] = {
    "lru": lambda blocks_max: LruPolicy(),
    "ours": lambda blocks_max: OurPolicy(),
    "fifo": lambda blocks_max: FifoPolicy(),
    "lfu": lambda blocks_max: LfuPolicy(),
    "sieve": lambda blocks_max: SievePolicy(),
    "s3fifo": S3FifoPolicy,
    "arc": ArcPolicy,
    "wtinylfu": WTinyLfuPolicy,
}

POLICY_NAMES: tuple[str, ...] = tuple(_POLICIES)


def make_policy(name: str, blocks_max: int = 0) -> EvictionPolicy[Any]:
    """A fresh policy. `blocks_max`: how many blocks it will hold; 0 when that is not known.
    ValueError names the policies there are."""
    if name not in _POLICIES:
        raise ValueError(f"eviction policy {name!r} is none of {', '.join(POLICY_NAMES)}")
    return _POLICIES[name](blocks_max)
