"""The dram tier: offsets into the node's one shared-memory segment."""

from moonpool.cache import OffsetAllocator
from moonpool.messages.store import TierStats


class DramTier:
    """A `Tier` whose places are byte offsets into a segment of `size_bytes`."""

    name = "dram"

    def __init__(self, size_bytes: int) -> None:
        self._allocator = OffsetAllocator(size_bytes)

    @property
    def bytes_total(self) -> int:
        return self._allocator.size_bytes

    @property
    def bytes_used(self) -> int:
        return self._allocator.bytes_used

    @property
    def fragmentation(self) -> float:
        return self._allocator.stats().fragmentation

    def footprint(self, size_bytes: int) -> int:
        return self._allocator.round_up(size_bytes)

    def reserve(self, size_bytes: int) -> int | None:
        return self._allocator.allocate(size_bytes)

    def release(self, place: int) -> None:
        self._allocator.free(place)

    def stats(self, blocks: int, evictions: int) -> TierStats:
        return TierStats(
            tier=self.name,
            blocks=blocks,
            bytes_used=self.bytes_used,
            bytes_total=self.bytes_total,
            evictions=evictions,
            fragmentation=self.fragmentation,
        )

    def check(self) -> None:
        self._allocator.check()
