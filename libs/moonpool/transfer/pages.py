"""Making the pages of a range be there before they are needed: in pieces, by several threads.

The first touch of fresh memory costs more than the copy that follows; for an adapter that pins it,
hundreds of times more than pinning alone.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np

from moonpool.transfer.memory import Memory

PIECE_BYTES = 64 << 20
THREADS_MAX = 4
_PAGE_BYTES = 4096
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

Progress = Callable[[int, int], None]  # bytes done, bytes in all


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


def populate_all(address: int, length: int, threads: int = THREADS_MAX) -> None:
    """The same in pieces, side by side. Blocks. Raises OSError."""
    for _ in _pieces_done(address, length, threads):
        pass


def wish(address: int, length: int) -> None:
    """The same where it can be had: for who goes on without."""
    with contextlib.suppress(OSError):
        populate_all(address, length)


async def prepare(memory: Memory, progress: Progress | None, threads: int = THREADS_MAX) -> None:
    """The same beside the event loop; `progress` is called on it. Cancelled, it ends after the
    pieces under way. Raises OSError."""
    loop = asyncio.get_running_loop()
    steps = _pieces_done(memory.address, memory.length, threads)
    done = 0
    try:
        while (step := await loop.run_in_executor(None, next, steps, 0)) > 0:
            done += step
            if progress is not None:
                progress(done, memory.length)
    finally:
        steps.close()


def _pieces_done(address: int, length: int, threads: int) -> Generator[int, None, None]:
    """Lengths of pieces, as they are done. Closing it early leaves out the rest."""
    workers = max(1, min(threads, len(os.sched_getaffinity(0)), -(-length // PIECE_BYTES)))
    starts = iter(range(0, length, PIECE_BYTES))
    under_way: dict[Future[None], int] = {}
    with ThreadPoolExecutor(workers, thread_name_prefix="moonpool-pages") as pool:
        while True:
            while len(under_way) < workers and (at := next(starts, None)) is not None:
                size = min(PIECE_BYTES, length - at)
                under_way[pool.submit(populate, address + at, size)] = size
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                future.result()
                yield under_way.pop(future)
