"""The nvme tier's ledger: offsets into its segment file."""

from collections.abc import Sequence

from moonpool.cache import OffsetAllocator
from moonpool.messages.store import TierStats


class NvmeTier:
    """A `Tier` whose places are byte offsets into a segment file of `size_bytes`."""

    name = "nvme"

    def __init__(self, size_bytes: int) -> None:
        self._allocator = OffsetAllocator(size_bytes)

    @property
    def bytes_total(self) -> int:
        return self._allocator.size_bytes

    @property
    def bytes_used(self) -> int:
        return self._allocator.bytes_used

    def footprint(self, size_bytes: int) -> int:
        return self._allocator.round_up(size_bytes)

    def reserve(self, size_bytes: int) -> int | None:
        return self._allocator.allocate(size_bytes)

    def restore(self, taken: Sequence[tuple[int, int]]) -> list[int]:
        """Only before anything was reserved: ValueError otherwise."""
        self._allocator.restore(taken)
        return [place for place, _ in taken]

    def release(self, place: int) -> None:
        self._allocator.free(place)

    def stats(self, blocks: int, evictions: int) -> TierStats:
        return TierStats(self.name, blocks, self.bytes_used, self.bytes_total, evictions)

    def check(self) -> None:
        self._allocator.check()
