"""Rows of numbers in pages: growing never moves what is there, so no call takes long.

Single numbers are read and written through memoryviews, which is quick from Python; whole ranges
through numpy.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BITS = 16
PAGE_ROWS = 1 << PAGE_BITS
_MASK = PAGE_ROWS - 1
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

COLUMNS: dict[str, str] = {
    "low": "Q",  # the key's first eight bytes, little-endian
    "high": "Q",  # and its last
    "place": "Q",
    "serial": "Q",
    "kind": "I",  # number of (tenant, size, chunk)
    "before": "I",  # in the order of use: slot + 1; 0: none
    "after": "I",
}
ROW_BYTES = sum({"Q": 8, "I": 4}[code] for code in COLUMNS.values())


class Page:
    """One memoryview per column."""

    __slots__ = tuple(COLUMNS)

    low: Any
    high: Any
    place: Any
    serial: Any
    kind: Any
    before: Any
    after: Any

    def __init__(self) -> None:
        for name, code in COLUMNS.items():
            setattr(self, name, np.zeros(PAGE_ROWS, code).data)


class Rows:
    """Slots that are taken and given back. `pages[slot >> PAGE_BITS].place[slot & 0xffff]`."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self._free: list[int] = []  # slots below _end
        self._end = 0

    def __len__(self) -> int:
        return self._end - len(self._free)

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        self._grow(self._end + 1)
        self._end += 1
        return self._end - 1

    def take_many(self, count: int) -> int:
        """The first of `count` slots that follow one another."""
        first = self._end
        self._grow(first + count)
        self._end += count
        return first

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def fill(self, first: int, name: str, values: "npt.NDArray[Any]") -> None:
        """Writes a column of slots that follow one another."""
        done = 0
        while done < len(values):
            slot = first + done
            at = slot & _MASK
            part = min(len(values) - done, PAGE_ROWS - at)
            column = np.asarray(getattr(self.pages[slot >> PAGE_BITS], name))
            column[at : at + part] = values[done : done + part]
            done += part

    def column(self, name: str) -> "npt.NDArray[Any]":
        """A copy of a column, of all slots ever taken."""
        parts = [np.asarray(getattr(page, name)) for page in self.pages]
        return np.concatenate(parts)[: self._end] if parts else np.zeros(0, COLUMNS[name])

    def bytes_used(self) -> int:
        """Of memory."""
        return len(self.pages) * PAGE_ROWS * ROW_BYTES

    def free_slots(self) -> list[int]:
        return list(self._free)

    def _grow(self, end: int) -> None:
        while len(self.pages) * PAGE_ROWS < end:
            self.pages.append(Page())
