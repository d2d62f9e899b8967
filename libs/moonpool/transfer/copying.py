"""memcpy of many ranges, with the GIL given back often enough and not more often than that.

Giving the GIL back costs nothing while the process is idle, but up to a switch interval when
another thread computes in Python; keeping it stops the event loop. So big ranges are copied outside
it, and small ones inside with a pause every `HOLD_BYTES` (about 50 us of copying).
"""

import ctypes

from moonpool.transfer.job import Job

RELEASE_BYTES = 128 << 10
HOLD_BYTES = 1 << 20

_Move = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_MoveHeld = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_address = ctypes.cast(ctypes.CDLL(None).memmove, ctypes.c_void_p).value or 0
_move = _Move(_address)
_move_held = _MoveHeld(_address)


def copy_ranges(job: Job, target: list[int], source: list[int], lengths: list[int]) -> bool:
    """Copies from address to address. False when the job was stopped on the way."""
    since_release = 0
    for to, origin, length in zip(target, source, lengths, strict=True):
        if length >= RELEASE_BYTES or since_release >= HOLD_BYTES:
            if job.stopped is not None:
                return False
            _move(to, origin, length)
            since_release = 0
        else:
            _move_held(to, origin, length)
            since_release += length
    return True
