"""Huge pages under shared memory, made on demand: what a disk can write to in one piece.

A disk takes a limited number of segments per request, and pages of 4 KiB would split a block into
many requests. Kernels rarely give shared memory huge pages by themselves, but collapse small ones
into huge ones when asked (Linux 6.1). Each is asked for once; where that is refused, readers and
writers go by an arena instead.
"""

import ctypes
import mmap
from threading import Lock

import numpy as np

HUGE_PAGE_BYTES = 2 << 20

_MADV_POPULATE_WRITE = 23
_MADV_COLLAPSE = 25
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class HugePages:
    """Of one long-lived mapping. Thread-safe. It only ever advises: no byte changes."""

    def __init__(self) -> None:
        self._is_huge: dict[int, bool] = {}  # number of the huge page -> what became of it
        self._lock = Lock()

    def ready(self, view: memoryview) -> bool:
        """Whether a disk can read and write all of `view` in place; makes it so if it can be, which
        takes a millisecond per huge page, once."""
        address = int(np.frombuffer(view, np.uint8).ctypes.data)
        if address % mmap.PAGESIZE or not view.nbytes:
            return False
        first, last = address // HUGE_PAGE_BYTES, (address + view.nbytes - 1) // HUGE_PAGE_BYTES
        return all(self._make(number) for number in range(first, last + 1))

    def stats(self) -> dict[str, int]:
        made = list(self._is_huge.values())
        return {"huge_pages": sum(made), "huge_pages_refused": len(made) - sum(made)}

    def _make(self, number: int) -> bool:
        known = self._is_huge.get(number)
        if known is None:
            with self._lock:  # one at a time: they share the kernel's lock on the address space
                known = self._is_huge.get(number)
                if known is None:
                    known = self._is_huge[number] = _collapse(number * HUGE_PAGE_BYTES)
        return known


def _collapse(address: int) -> bool:
    """Pages must be there to be collapsed. A part that is not mapped refuses both."""
    for advice in (_MADV_POPULATE_WRITE, _MADV_COLLAPSE):
        if _libc.madvise(address, HUGE_PAGE_BYTES, advice) != 0:
            return False
    return True
