"""Hands out ranges of one contiguous segment: best fit, neighbours merged at once.

Of the holes that fit, the smallest is taken; blocks of one size therefore reuse each other's
places exactly, and large holes stay whole for large objects. Sizes are rounded up to whole
pages. Finding takes O(log d), changing the list of sizes O(d) cheap moves, for d distinct hole
sizes (few, since most blocks are alike); merging takes constant time.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

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
        self._size_at: dict[int, int] = {}  # hole's offset -> its size
        self._start_of: dict[int, int] = {}  # hole's end -> its offset
        self._holes: dict[int, dict[int, None]] = {}  # size -> offsets, the last freed is reused
        self._sizes: list[int] = []  # keys of _holes, ascending
        self._add_hole(0, self.size_bytes)

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
        at = bisect_left(self._sizes, rounded)
        if at == len(self._sizes):
            return None
        hole_bytes = self._sizes[at]
        offset = next(reversed(self._holes[hole_bytes]))
        self._drop_hole(offset, hole_bytes)
        if hole_bytes > rounded:
            self._add_hole(offset + rounded, hole_bytes - rounded)
        self._live[offset] = (rounded, size_bytes)
        self.bytes_used += rounded
        self._bytes_asked += size_bytes
        return offset

    def free(self, offset: int) -> None:
        """Gives back what `allocate` returned. KeyError when it is not allocated."""
        rounded, asked = self._live.pop(offset)
        self.bytes_used -= rounded
        self._bytes_asked -= asked
        start, end = offset, offset + rounded
        if end in self._size_at:
            right_bytes = self._size_at[end]
            self._drop_hole(end, right_bytes)
            end += right_bytes
        if start in self._start_of:
            left = self._start_of[start]
            self._drop_hole(left, self._size_at[left])
            start = left
        self._add_hole(start, end - start)

    def restore(self, taken: Iterable[tuple[int, int]]) -> None:
        """Allocates (offset, size) pairs that were handed out in an earlier life, on an allocator
        that has handed out nothing yet. ValueError when they overlap or stick out."""
        if self._live:
            raise ValueError("places can be restored only before any was handed out")
        self._drop_hole(0, self.size_bytes)
        end = 0
        for offset, asked in sorted(taken):
            rounded = self.round_up(asked)
            if offset < end or offset + rounded > self.size_bytes or asked < 1:
                raise ValueError(f"{asked} bytes at {offset} overlap something or stick out")
            if offset > end:
                self._add_hole(end, offset - end)
            self._live[offset] = (rounded, asked)
            self.bytes_used += rounded
            self._bytes_asked += asked
            end = offset + rounded
        if end < self.size_bytes:
            self._add_hole(end, self.size_bytes - end)

    def stats(self) -> AllocatorStats:
        return AllocatorStats(
            bytes_total=self.size_bytes,
            bytes_used=self.bytes_used,
            bytes_padding=self.bytes_used - self._bytes_asked,
            allocations=len(self._live),
            holes=len(self._size_at),
            hole_max_bytes=self._sizes[-1] if self._sizes else 0,
        )

    def check(self) -> None:
        """Asserts that allocations and holes tile the segment and no two holes touch."""
        pieces = [(at, size, True) for at, (size, _) in self._live.items()]
        pieces += [(at, size, False) for at, size in self._size_at.items()]
        end, was_live = 0, True
        for at, size, live in sorted(pieces):
            assert at == end, f"gap or overlap at {at}, expected {end}"
            assert live or was_live, f"two holes touch at {at}"
            end, was_live = at + size, live
        assert end == self.size_bytes, f"pieces end at {end} of {self.size_bytes}"
        assert self.bytes_used == sum(size for size, _ in self._live.values())
        assert self._bytes_asked == sum(asked for _, asked in self._live.values())
        assert self._start_of == {at + size: at for at, size in self._size_at.items()}
        assert self._sizes == sorted(self._holes)
        listed = {at: size for size, offsets in self._holes.items() for at in offsets}
        assert listed == self._size_at

    def _add_hole(self, offset: int, size_bytes: int) -> None:
        self._size_at[offset] = size_bytes
        self._start_of[offset + size_bytes] = offset
        offsets = self._holes.get(size_bytes)
        if offsets is None:
            offsets = self._holes[size_bytes] = {}
            insort(self._sizes, size_bytes)
        offsets[offset] = None

    def _drop_hole(self, offset: int, size_bytes: int) -> None:
        del self._size_at[offset]
        del self._start_of[offset + size_bytes]
        offsets = self._holes[size_bytes]
        del offsets[offset]
        if not offsets:
            del self._holes[size_bytes]
            del self._sizes[bisect_left(self._sizes, size_bytes)]
