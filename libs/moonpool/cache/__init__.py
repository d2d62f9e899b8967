"""Who stays, who is worth a write, and where it lies: eviction, admission, and the allocator.

Pure; used by device pools, store nodes and the simulator. It never moves bytes or reads a clock.
"""

from moonpool.cache.admission import (
    ADMISSION_NAMES,
    AdmissionFilter,
    AdmitAll,
    FrequencyAdmission,
    ReuseAdmission,
    UsesAdmission,
    make_admission,
)
from moonpool.cache.allocator import AllocatorStats, OffsetAllocator
from moonpool.cache.base import NO_HINT, BlockHint, EvictionPolicy
from moonpool.cache.fifo import FifoPolicy
from moonpool.cache.holes import Holes
from moonpool.cache.lru import LruPolicy
from moonpool.cache.ours import OurPolicy
from moonpool.cache.registry import POLICY_NAMES, make_policy

__all__ = [
    "ADMISSION_NAMES",
    "NO_HINT",
    "POLICY_NAMES",
    "AdmissionFilter",
    "AdmitAll",
    "AllocatorStats",
    "BlockHint",
    "EvictionPolicy",
    "FifoPolicy",
    "FrequencyAdmission",
    "Holes",
    "LruPolicy",
    "OffsetAllocator",
    "OurPolicy",
    "ReuseAdmission",
    "UsesAdmission",
    "make_admission",
    "make_policy",
]
