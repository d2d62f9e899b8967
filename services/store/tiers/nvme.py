"""The nvme tier's ledger: offsets into its segment file."""

from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool.cache import Holes
from moonpool.messages.store import TierStats
from services.store.packed.sorting import sorted_ranges
from services.store.tiers.record import PAGE_BYTES, round_up


class NvmeTier:
    """A `LowerTier` whose places are byte offsets into a segment file of `size_bytes`."""

    name = "nvme"

    def __init__(self, size_bytes: int) -> None:
        """ValueError when it holds no page."""
        self.bytes_total = size_bytes - size_bytes % PAGE_BYTES
        if self.bytes_total <= 0:
            raise ValueError(f"{size_bytes} bytes hold no page of {PAGE_BYTES}")
        self.bytes_used = 0  # 0 <= bytes_used <= bytes_total
        self._holes = Holes()
        self._holes.give(0, self.bytes_total)

    @property
    def fragmentation(self) -> float:
        free_bytes = self.bytes_total - self.bytes_used
        return 1.0 - self._holes.max_bytes / free_bytes if free_bytes else 0.0

    def footprint(self, size_bytes: int) -> int:
        return round_up(size_bytes)

    def reserve(self, size_bytes: int) -> int | None:
        if size_bytes < 1:
            raise ValueError(f"cannot reserve {size_bytes} bytes")
        rounded = round_up(size_bytes)
        place = self._holes.take(rounded)
        if place is not None:
            self.bytes_used += rounded
        return place

    def restore(self, places: "npt.NDArray[Any]", sizes: "npt.NDArray[Any]") -> "npt.NDArray[Any]":
        """Only before anything was reserved: ValueError otherwise."""
        if self.bytes_used:
            raise ValueError("places can be restored only before any was handed out")
        if np.any(places % PAGE_BYTES):
            raise ValueError("records begin inside a page")
        starts, ends = sorted_ranges(places, -(-sizes // PAGE_BYTES) * PAGE_BYTES)
        before = np.concatenate(([0], ends))  # where the one before ends; ..
        after = np.concatenate((starts, [self.bytes_total]))  # .. and the next begins
        if np.any(before > after) or np.any(sizes < 1):
            raise ValueError("records overlap, or stick out")
        self._holes = Holes()
        for index in np.flatnonzero(before < after).tolist():
            self._holes.give(int(before[index]), int(after[index] - before[index]))
        self.bytes_used = int((ends - starts).sum())
        return places

    def release(self, place: int, size_bytes: int) -> None:
        rounded = round_up(size_bytes)
        assert place % PAGE_BYTES == 0
        assert 0 <= place <= self.bytes_total - rounded
        assert rounded <= self.bytes_used
        self._holes.give(place, rounded)
        self.bytes_used -= rounded

    def stats(self, blocks: int, evictions: int) -> TierStats:
        return TierStats(
            self.name,
            blocks,
            self.bytes_used,
            self.bytes_total,
            evictions,
            fragmentation=self.fragmentation,
        )

    def check(self) -> None:
        self._holes.check()
        free_bytes = sum(size_bytes for _, size_bytes in self._holes.items())
        assert self.bytes_used + free_bytes == self.bytes_total
