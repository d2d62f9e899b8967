"""Who stays and where it lies: eviction policies and the allocator of a segment.

Pure; used by device pools, store nodes and the simulator. It never moves bytes or reads a clock.
"""

from moonpool.cache.allocator import AllocatorStats, OffsetAllocator
from moonpool.cache.base import NO_HINT, BlockHint, EvictionPolicy
from moonpool.cache.fifo import FifoPolicy
from moonpool.cache.lru import LruPolicy
from moonpool.cache.registry import POLICY_NAMES, make_policy

__all__ = [
    "NO_HINT",
    "POLICY_NAMES",
    "AllocatorStats",
    "BlockHint",
    "EvictionPolicy",
    "FifoPolicy",
    "LruPolicy",
    "OffsetAllocator",
    "make_policy",
]
