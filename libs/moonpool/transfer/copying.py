"""memcpy of many ranges, with the GIL given back often enough and not more often than that.

Giving the GIL back costs nothing while the process is idle, but up to a switch interval when
another thread computes in Python; keeping it stops the event loop. So big ranges are copied outside
it, and small ones inside with a pause every `HOLD_BYTES` (about 50 us of copying).

A long range goes in pieces of `PIECE_BYTES`: below the size of a level-2 cache some C libraries
copy by an instruction that does not read first what it is going to overwrite, which is a sixth
faster than the loads and stores that they use beyond it.
"""

import ctypes
import sys
from collections.abc import Generator

from moonpool.transfer.base import Op
from moonpool.transfer.checksums import seal
from moonpool.transfer.errors import TransferCancelled, TransferCorrupt
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.slices import plain, shifted

RELEASE_BYTES = 128 << 10
HOLD_BYTES = 1 << 20
PIECE_BYTES = 512 << 10
STEP_BYTES = 4 << 20  # of one copy on the event loop, which it stops for half a millisecond

_Move = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_MoveHeld = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_address = ctypes.cast(ctypes.CDLL(None).memmove, ctypes.c_void_p).value or 0
_move = _Move(_address)
_move_held = _MoveHeld(_address)


def copy_slice(job: Job, remote_base: int, peer: str) -> Exception | None:
    """Runs a job between its local region and the peer's memory, whose region begins at
    `remote_base`. None when every byte is where it belongs."""
    piece = job.slice
    if len(piece.lengths) == 1 and piece.payload <= STEP_BYTES and not job.checked:
        here = job.local.address + int(piece.local[0])
        there = remote_base + job.remote.grant.offset + int(piece.remote[0])
        to, origin = (here, there) if job.op is Op.READ else (there, here)
        if piece.payload >= RELEASE_BYTES:
            _copy(to, origin, piece.payload)
        else:
            _move_held(to, origin, piece.payload)
        return None
    steps = copy_steps(job, remote_base, peer, sys.maxsize)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            error: Exception | None = end.value
            return error


def copy_steps(
    job: Job, remote_base: int, peer: str, step_bytes: int = STEP_BYTES
) -> Generator[None, None, Exception | None]:
    """The same with a rest after every `step_bytes` or so, for whoever has other things to do."""
    piece = job.slice
    here = shifted(piece.local, job.local.address)
    there = shifted(piece.remote, remote_base + job.remote.grant.offset)
    target, source = (here, there) if job.op is Op.READ else (there, here)
    lengths = plain(piece.lengths)
    if not (yield from copy_ranges(job, target, source, lengths, step_bytes)):
        return job.stopped or TransferCancelled("stopped")
    if job.checked and seal(target, lengths) != seal(source, lengths):
        return PathFailed(TransferCorrupt(f"a copy differs from what {peer} has"))
    return None


def copy_ranges(
    job: Job, target: list[int], source: list[int], lengths: list[int], step_bytes: int
) -> Generator[None, None, bool]:
    """Copies from address to address. False when the job was stopped on the way."""
    if max(lengths) < RELEASE_BYTES:
        return (yield from _copy_small(job, target, source, lengths))
    copied = 0  # since the last rest
    for to, origin, length in zip(target, source, lengths, strict=True):
        at = 0
        while at < length:
            if copied >= step_bytes:
                yield
                copied = 0
            if job.stopped is not None:
                return False
            step = min(length - at, step_bytes)
            _copy(to + at, origin + at, step)
            at += step
            copied += step
    return True


def _copy(to: int, origin: int, length: int) -> None:
    """One range, outside the GIL."""
    while length > PIECE_BYTES:
        _move(to, origin, PIECE_BYTES)
        to, origin, length = to + PIECE_BYTES, origin + PIECE_BYTES, length - PIECE_BYTES
    _move(to, origin, length)


def _copy_small(
    job: Job, target: list[int], source: list[int], lengths: list[int]
) -> Generator[None, None, bool]:
    """The same for ranges that are too small to give the GIL back for each."""
    at_once = max(1, HOLD_BYTES // max(lengths))
    for start in range(0, len(lengths), at_once):
        if start:
            yield
        if job.stopped is not None:
            return False
        _move(target[start], source[start], lengths[start])  # gives it back
        part = slice(start + 1, start + at_once)
        for to, origin, length in zip(target[part], source[part], lengths[part], strict=True):
            _move_held(to, origin, length)
    return True
