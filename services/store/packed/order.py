"""The order of use, least recent first, as links in the rows. Every change takes constant time."""

import numpy as np

from services.store.packed.rows import PAGE_BITS, Rows

_MASK = (1 << PAGE_BITS) - 1


class Order:
    """Of slots of `rows`; links are slot + 1, and 0 is none."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._first = 0
        self._last = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> int:
        """The slot whose turn it is; -1 when empty."""
        return self._first - 1

    def append(self, slot: int) -> None:
        """As the most recent one."""
        page, at = self._rows.pages[slot >> PAGE_BITS], slot & _MASK
        page.before[at], page.after[at] = self._last, 0
        self._link_after(self._last, slot + 1)
        self._last = slot + 1
        self._count += 1

    def remove(self, slot: int) -> None:
        page, at = self._rows.pages[slot >> PAGE_BITS], slot & _MASK
        before, after = page.before[at], page.after[at]
        self._link_after(before, after)
        if after:
            self._rows.pages[(after - 1) >> PAGE_BITS].before[(after - 1) & _MASK] = before
        else:
            self._last = before
        self._count -= 1

    def renew(self, slot: int) -> None:
        """It was used: it becomes the most recent one."""
        if slot + 1 != self._last:
            self.remove(slot)
            self.append(slot)

    def extend(self, first: int, count: int) -> None:
        """Slots `first`, `first + 1`, .. become the most recent ones, in this order."""
        if not count:
            return
        links = np.arange(first, first + count, dtype=np.uint32)
        self._rows.fill(first, "before", links)
        self._rows.fill(first, "after", links + 2)
        page = self._rows.pages[first >> PAGE_BITS]
        page.before[first & _MASK] = self._last
        self._link_after(self._last, first + 1)
        last = first + count - 1
        self._rows.pages[last >> PAGE_BITS].after[last & _MASK] = 0
        self._last = last + 1
        self._count += count

    def slots(self, count_max: int = 1 << 62) -> list[int]:
        """All, or so many, least recent first. Linear."""
        out: list[int] = []
        link = self._first
        while link and len(out) < count_max:
            out.append(link - 1)
            link = self._rows.pages[(link - 1) >> PAGE_BITS].after[(link - 1) & _MASK]
        return out

    def _link_after(self, before: int, after: int) -> None:
        if before:
            self._rows.pages[(before - 1) >> PAGE_BITS].after[(before - 1) & _MASK] = after
        else:
            self._first = after
