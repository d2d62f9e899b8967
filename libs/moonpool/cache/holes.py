"""The free ranges of a segment: best fit, neighbours merged at once.

For owners who know by themselves what is taken, and how long it is; `OffsetAllocator` keeps that
for the others.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable


class Holes:
    """No two touch. Starts with none."""

    def __init__(self) -> None:
        self._size_at: dict[int, int] = {}  # hole's offset -> its size
        self._start_of: dict[int, int] = {}  # hole's end -> its offset
        self._by_size: dict[int, dict[int, None]] = {}  # size -> offsets, the last freed is reused
        self._sizes: list[int] = []  # keys of _by_size, ascending

    def __len__(self) -> int:
        return len(self._size_at)

    @property
    def max_bytes(self) -> int:
        """The largest one; 0 when there is none."""
        return self._sizes[-1] if self._sizes else 0

    def take(self, size_bytes: int) -> int | None:
        """The start of the smallest hole that fits `size_bytes` > 0, cut to it; None: none does."""
        at = bisect_left(self._sizes, size_bytes)
        if at == len(self._sizes):
            return None
        hole_bytes = self._sizes[at]
        offset = next(reversed(self._by_size[hole_bytes]))
        self._drop(offset, hole_bytes)
        if hole_bytes > size_bytes:
            self._add(offset + size_bytes, hole_bytes - size_bytes)
        return offset

    def give(self, offset: int, size_bytes: int) -> None:
        """A range that was taken, or was never a hole, becomes one; not checked."""
        start, end = offset, offset + size_bytes
        if end in self._size_at:
            right_bytes = self._size_at[end]
            self._drop(end, right_bytes)
            end += right_bytes
        if start in self._start_of:
            left = self._start_of[start]
            self._drop(left, self._size_at[left])
            start = left
        self._add(start, end - start)

    def items(self) -> Iterable[tuple[int, int]]:
        """(offset, size) of each."""
        return self._size_at.items()

    def check(self) -> None:
        """Asserts that all lists tell the same."""
        assert self._start_of == {at + size: at for at, size in self._size_at.items()}
        assert not self._start_of.keys() & self._size_at.keys(), "two holes touch"
        assert self._sizes == sorted(self._by_size)
        listed = {at: size for size, offsets in self._by_size.items() for at in offsets}
        assert listed == self._size_at

    def _add(self, offset: int, size_bytes: int) -> None:
        self._size_at[offset] = size_bytes
        self._start_of[offset + size_bytes] = offset
        offsets = self._by_size.get(size_bytes)
        if offsets is None:
            offsets = self._by_size[size_bytes] = {}
            insort(self._sizes, size_bytes)
        offsets[offset] = None

    def _drop(self, offset: int, size_bytes: int) -> None:
        del self._size_at[offset]
        del self._start_of[offset + size_bytes]
        offsets = self._by_size[size_bytes]
        del offsets[offset]
        if not offsets:
            del self._by_size[size_bytes]
            del self._sizes[bisect_left(self._sizes, size_bytes)]
