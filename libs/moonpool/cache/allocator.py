"""Hands out ranges of one contiguous segment: best fit, neighbours merged at once.

Of the holes that fit, the smallest is taken; blocks of one size therefore reuse each other's
places exactly, and large holes stay whole for large objects. Sizes are rounded up to whole
pages. Finding takes O(log d), changing the list of sizes O(d) cheap moves, for d distinct hole
sizes (few, since most blocks are alike); merging takes constant time.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from moonpool.cache.holes import Holes

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    bytes_total: int
    bytes_used: int  # rounded up to pages
    bytes_padding: int  # of the used: rounding
    allocations: int
    holes: int
    hole_max_bytes: int

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that one allocation could not get; 0.0 when none is free."""
        free = self.bytes_total - self.bytes_used
        return 1.0 - self.hole_max_bytes / free if free else 0.0


class OffsetAllocator:
    """Allocates in `[0, size_bytes)`, cut down to whole pages. ValueError when none remains."""

    def __init__(self, size_bytes: int, page_bytes: int = PAGE_BYTES) -> None:
        self.page_bytes = page_bytes
        self.size_bytes = size_bytes - size_bytes % page_bytes
        if self.size_bytes <= 0:
            raise ValueError(f"{size_bytes} bytes hold no page of {page_bytes}")
        self.bytes_used = 0  # 0 <= bytes_used <= size_bytes
        self._bytes_asked = 0  # before rounding; <= bytes_used
        self._live: dict[int, tuple[int, int]] = {}  # offset -> (rounded, asked)
        self._holes = Holes()
        self._holes.give(0, self.size_bytes)

    def round_up(self, size_bytes: int) -> int:
        """What an allocation of `size_bytes` takes from the segment."""
        return -(-size_bytes // self.page_bytes) * self.page_bytes

    def allocate(self, size_bytes: int) -> int | None:
        """Offset of a range of at least `size_bytes`; None when no hole fits.

        ValueError when `size_bytes` is not positive.
        """
        if size_bytes < 1:
            raise ValueError(f"cannot allocate {size_bytes} bytes")
        rounded = self.round_up(size_bytes)
        offset = self._holes.take(rounded)
        if offset is None:
            return None
        self._live[offset] = (rounded, size_bytes)
        self.bytes_used += rounded
        self._bytes_asked += size_bytes
        return offset

    def free(self, offset: int) -> None:
        """Gives back what `allocate` returned. KeyError when it is not allocated."""
        rounded, asked = self._live.pop(offset)
        self.bytes_used -= rounded
        self._bytes_asked -= asked
        self._holes.give(offset, rounded)

    def restore(self, taken: Iterable[tuple[int, int]]) -> None:
        """Allocates (offset, size) pairs that were handed out in an earlier life, on an allocator
        that has handed out nothing yet. ValueError when they overlap or stick out."""
        if self._live:
            raise ValueError("places can be restored only before any was handed out")
        self._holes = Holes()
        end = 0
        for offset, asked in sorted(taken):
            rounded = self.round_up(asked)
            if offset < end or offset + rounded > self.size_bytes or asked < 1:
                raise ValueError(f"{asked} bytes at {offset} overlap something or stick out")
            if offset > end:
                self._holes.give(end, offset - end)
            self._live[offset] = (rounded, asked)
            self.bytes_used += rounded
            self._bytes_asked += asked
            end = offset + rounded
        if end < self.size_bytes:
            self._holes.give(end, self.size_bytes - end)

    def stats(self) -> AllocatorStats:
        return AllocatorStats(
            bytes_total=self.size_bytes,
            bytes_used=self.bytes_used,
            bytes_padding=self.bytes_used - self._bytes_asked,
            allocations=len(self._live),
            holes=len(self._holes),
            hole_max_bytes=self._holes.max_bytes,
        )

    def check(self) -> None:
        """Asserts that allocations and holes tile the segment and no two holes touch."""
        pieces = [(at, size, True) for at, (size, _) in self._live.items()]
        pieces += [(at, size, False) for at, size in self._holes.items()]
        end, was_live = 0, True
        for at, size, live in sorted(pieces):
            assert at == end, f"gap or overlap at {at}, expected {end}"
            assert live or was_live, f"two holes touch at {at}"
            end, was_live = at + size, live
        assert end == self.size_bytes, f"pieces end at {end} of {self.size_bytes}"
        assert self.bytes_used == sum(size for size, _ in self._live.values())
        assert self._bytes_asked == sum(asked for _, asked in self._live.values())
        self._holes.check()
