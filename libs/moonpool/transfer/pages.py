"""Making the pages of a range be there before they are needed: in pieces, by several threads.

The first touch of fresh memory costs more than the copy that follows; for an adapter that pins it,
hundreds of times more than pinning alone.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from moonpool.transfer.memory import Memory

PIECE_BYTES = 64 << 20
THREADS_MAX = 4
_PAGE_BYTES = 4096
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

Progress = Callable[[int, int], object]  # bytes done, bytes in all


def populate(address: int, length: int) -> None:
    """Outside the GIL, without changing a byte. Raises OSError when there is no room for them."""
    start = address & -_PAGE_BYTES
    if not _libc.madvise(start, address + length - start, _MADV_POPULATE_WRITE):
        return
    code = ctypes.get_errno()
    if code != errno.EINVAL:
        raise OSError(code, os.strerror(code))
    pages = (ctypes.c_char * length).from_address(address)  # a kernel that cannot: look at each
    np.frombuffer(memoryview(pages).cast("B"), np.uint8)[::_PAGE_BYTES].max()


class _Pieces:
    """What is still to do, for threads that share it."""

    def __init__(self, address: int, length: int, done: Callable[[int], None]) -> None:
        self._address = address
        self._length = length
        self._done = done
        self._lock = threading.Lock()
        self._at = 0  # 0 <= at <= length
        self.stopped = False

    def work(self) -> None:
        """Until nothing is left or it was stopped. Raises OSError, and then others stop too."""
        while (piece := self._take()) is not None:
            try:
                populate(*piece)
            except OSError:
                self.stopped = True
                raise
            self._done(piece[1])

    def stop(self) -> None:
        """What nobody has begun is left."""
        self.stopped = True

    def _take(self) -> tuple[int, int] | None:
        with self._lock:
            size = min(PIECE_BYTES, self._length - self._at)
            if self.stopped or not size:
                return None
            self._at += size
            return self._address + self._at - size, size


def _workers(length: int, threads: int) -> int:
    return max(1, min(threads, len(os.sched_getaffinity(0)), -(-length // PIECE_BYTES)))


def populate_all(address: int, length: int, threads: int = THREADS_MAX) -> None:
    """The same in pieces, side by side. Blocks. Raises OSError."""
    pieces, workers = _Pieces(address, length, lambda size: None), _workers(length, threads)
    with ThreadPoolExecutor(workers, thread_name_prefix="moonpool-pages") as pool:
        for future in [pool.submit(pieces.work) for _ in range(workers)]:
            future.result()


def wish(address: int, length: int) -> None:
    """The same where it can be had: for who goes on without."""
    with contextlib.suppress(OSError):
        populate_all(address, length)


async def beside_the_loop(
    works: Sequence[Callable[[], None]], stop: Callable[[], None] = lambda: None
) -> None:
    """Runs each on a thread of its own; raises what one of them does. Then, or when it is
    cancelled, it calls `stop`. It returns when all have ended."""
    if not works:
        return
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(works), thread_name_prefix="moonpool-pages") as pool:
        futures = [loop.run_in_executor(pool, work) for work in works]
        try:
            await asyncio.gather(*futures)
        finally:
            stop()
            await asyncio.wait(futures)


async def prepare(memory: Memory, progress: Progress | None, threads: int = THREADS_MAX) -> None:
    """The same beside the event loop; `progress` is called on it. Cancelled, it ends after the
    pieces under way. Raises OSError."""
    loop = asyncio.get_running_loop()
    done_bytes = 0

    def tell(size: int) -> None:
        nonlocal done_bytes
        done_bytes += size
        if progress is not None:
            progress(done_bytes, memory.length)

    def done(size: int) -> None:
        loop.call_soon_threadsafe(tell, size)

    pieces = _Pieces(memory.address, memory.length, done)
    await beside_the_loop([pieces.work] * _workers(memory.length, threads), pieces.stop)
    await asyncio.sleep(0)  # what was done last is told
