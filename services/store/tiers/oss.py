"""The oss tier's ledger: a budget of bytes, since a bucket has no places."""

from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool.messages.store import TierStats


class OssTier:
    """A `LowerTier` whose places are numbers without meaning."""

    name = "oss"

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < 1:
            raise ValueError(f"a budget of {size_bytes} bytes holds nothing")
        self.bytes_total = size_bytes
        self.bytes_used = 0  # above bytes_total only when more was found in the bucket
        self._last_place = 0

    @property
    def fragmentation(self) -> float:
        return 0.0

    def footprint(self, size_bytes: int) -> int:
        return size_bytes

    def reserve(self, size_bytes: int) -> int | None:
        if size_bytes < 1:
            raise ValueError(f"cannot reserve {size_bytes} bytes")
        if self.bytes_used + size_bytes > self.bytes_total:
            return None
        self._last_place += 1
        self.bytes_used += size_bytes
        return self._last_place

    def restore(self, places: "npt.NDArray[Any]", sizes: "npt.NDArray[Any]") -> "npt.NDArray[Any]":
        """At any time; what was found is here, whether or not it fits the budget."""
        first = self._last_place + 1
        self._last_place += len(places)
        self.bytes_used += int(sizes.sum())
        return np.arange(first, first + len(places), dtype=np.int64)

    def release(self, place: int, size_bytes: int) -> None:
        assert 0 < place <= self._last_place
        assert size_bytes <= self.bytes_used
        self.bytes_used -= size_bytes

    def stats(self, blocks: int, evictions: int) -> TierStats:
        return TierStats(self.name, blocks, self.bytes_used, self.bytes_total, evictions)

    def check(self) -> None:
        assert self.bytes_used >= 0
