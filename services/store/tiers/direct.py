"""Direct I/O: files whose bytes bypass the page cache, and the aligned memory that it needs.

Memory is private and asks for huge pages: a disk takes a limited number of segments per request,
and pages of 4 KiB would split a block into many requests (twice the time, four times the CPU).
"""

import ctypes
import errno
import mmap
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition

import numpy as np

HUGE_PAGE_BYTES = 2 << 20
ARENA_WAIT_S = 30.0
SYNC_WAIT_S = 30.0

_MADV_HUGEPAGE = 14
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Views of one length; other threads run meanwhile, which a slice assignment would not let
    them."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class Arena:
    """Private memory of whole huge pages. It lives as long as the object; views must not outlive
    it."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self._length = self.size_bytes + HUGE_PAGE_BYTES  # so that a huge page can start inside
        prot = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = _libc.mmap(None, self._length, prot, flags, -1, 0)
        if start in (None, _MAP_FAILED):
            error = ctypes.get_errno()
            raise OSError(error, f"mmap of {self._length} bytes: {os.strerror(error)}")
        self._start: int = start
        self._munmap = _libc.munmap
        address = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        _libc.madvise(address, self.size_bytes, _MADV_HUGEPAGE)  # a wish; EINVAL without it
        raw = (ctypes.c_char * self.size_bytes).from_address(address)
        self.view = memoryview(raw).cast("B")

    def __del__(self) -> None:
        if hasattr(self, "_start"):
            self._munmap(self._start, self._length)


class Arenas:
    """A fixed number of arenas, lent to one thread each."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self._free: queue.SimpleQueue[Arena] = queue.SimpleQueue()  # never more than `count`
        for _ in range(count):
            self._free.put(Arena(size_bytes))

    @contextmanager
    def lend(self) -> Iterator[memoryview]:
        """TimeoutError when none comes free in time."""
        try:
            arena = self._free.get(timeout=ARENA_WAIT_S)
        except queue.Empty:
            raise TimeoutError(f"no buffer within {ARENA_WAIT_S:g} s") from None
        try:
            yield arena.view
        finally:
            self._free.put(arena)


class DirectFile:
    """A file of fixed length, all of its blocks allocated at once. Offsets, lengths and memory are
    whole pages. OSError on everything that the system refuses; EINVAL where the file system has
    no direct I/O."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        try:
            _require_room(self._fd, size_bytes)
            if os.fstat(self._fd).st_size > size_bytes:
                os.ftruncate(self._fd, size_bytes)
            os.posix_fallocate(self._fd, 0, size_bytes)
        except BaseException:
            os.close(self._fd)
            raise
        self._turn = Condition()
        self._is_syncing = False
        self._syncs_begun = 0
        self._syncs_done = 0  # the last one that succeeded; <= _syncs_begun

    def write(self, offset: int, *views: memoryview) -> None:
        """The views one after the other."""
        self._move(os.pwritev, offset, views)

    def read(self, offset: int, *views: memoryview) -> None:
        """Fills the views one after the other. EOFError when the file is shorter."""
        self._move(os.preadv, offset, views)

    def _move(
        self,
        call: Callable[[int, list[memoryview], int], int],
        offset: int,
        views: Sequence[memoryview],
    ) -> None:
        left = [view for view in views if view.nbytes]
        while left:
            done = call(self._fd, left, offset)
            if not done:
                raise EOFError(f"the file ends at {offset}, before {left[-1].nbytes} more bytes")
            offset += done
            while left and done >= left[0].nbytes:
                done -= left.pop(0).nbytes
            if done:
                left[0] = left[0][done:]

    def sync(self) -> None:
        """What was written before is on the disk. Threads that ask at once share one request."""
        with self._turn:
            ticket = self._syncs_begun + 1
            while self._syncs_done < ticket:
                if self._is_syncing:
                    if not self._turn.wait(SYNC_WAIT_S):
                        raise TimeoutError(f"the disk does not sync within {SYNC_WAIT_S:g} s")
                else:
                    self._sync_for_all()

    def _sync_for_all(self) -> None:
        """Called, and left, with the turn."""
        self._is_syncing = True
        self._syncs_begun = number = self._syncs_begun + 1
        self._turn.release()
        try:
            os.fdatasync(self._fd)
        finally:
            self._turn.acquire()
            self._is_syncing = False
            self._turn.notify_all()  # after an error: the next one tries for itself
        self._syncs_done = number

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _require_room(fd: int, size_bytes: int) -> None:
    """OSError(ENOSPC) before anything is allocated: not even for a moment do we fill a disk."""
    disk, own_bytes = os.fstatvfs(fd), os.fstat(fd).st_blocks * 512
    if size_bytes > disk.f_bavail * disk.f_frsize + own_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
