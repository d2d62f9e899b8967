"""sendmsg and recvmsg over arrays of (address, length), outside the GIL and without a Python object
per range. The caller keeps the memory alive and the socket open for as long as a call runs: only
the thread that uses a socket here may close it, others may shut it down."""

import ctypes
import errno
import os
import socket
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.uint64]  # [ranges, 2]: address, length

IOV_MAX = 1024
SAME_HOST_BUFFER_BYTES = 256 << 10
_libc = ctypes.CDLL(None, use_errno=True)


class _Msghdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


for _call in (_libc.sendmsg, _libc.recvmsg):
    _call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    _call.restype = ctypes.c_ssize_t


class StreamBroken(OSError):
    """The other side closed, reset, or made no progress within the socket's timeout."""

    @property
    def idle(self) -> bool:
        """It was the timeout."""
        return self.errno == errno.EAGAIN


def set_timeouts(sock: socket.socket, send_s: float, receive_s: float) -> None:
    """A blocking call without any progress for so long ends in StreamBroken. 0: never."""
    for option, seconds in ((socket.SO_SNDTIMEO, send_s), (socket.SO_RCVTIMEO, receive_s)):
        micros = int(seconds * 1e6)
        value = struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)
        sock.setsockopt(socket.SOL_SOCKET, option, value)


def tune(sock: socket.socket) -> None:
    """Of a connected stream. Between processes of one host, buffers that stay in the cache are up
    to half as fast again as the kernel's own choice; over a network that choice is the right one."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sock.getpeername()[0] == sock.getsockname()[0]:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SAME_HOST_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SAME_HOST_BUFFER_BYTES)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def vector(addresses: Any, lengths: Any) -> Vector:
    """The array that the calls below take."""
    out = np.empty((len(lengths), 2), np.uint64)
    out[:, 0] = addresses
    out[:, 1] = lengths
    return out


def send_all(fd: int, vec: Vector) -> None:
    """Sends every byte of `vec`, which is used up. Raises StreamBroken."""
    _move(_libc.sendmsg, fd, vec, socket.MSG_NOSIGNAL)


def receive_all(fd: int, vec: Vector) -> None:
    """Fills every byte of `vec`, which is used up. Raises StreamBroken."""
    _move(_libc.recvmsg, fd, vec, socket.MSG_WAITALL)


def _move(call: Any, fd: int, vec: Vector, flags: int) -> None:
    header = _Msghdr()
    pointer = ctypes.byref(header)
    base = vec.ctypes.data
    first, count = 0, len(vec)
    while first < count:
        header.iov = base + 16 * first
        header.iovlen = min(count - first, IOV_MAX)
        moved = call(fd, pointer, flags)
        if moved <= 0:
            code = ctypes.get_errno() if moved < 0 else errno.ECONNRESET
            if code == errno.EINTR:
                continue
            if code == errno.EAGAIN:
                raise StreamBroken(code, "no progress within the timeout")
            raise StreamBroken(code, os.strerror(code))
        first = _advance(vec, first, moved)


def _advance(vec: Vector, first: int, moved: int) -> int:
    """Takes `moved` bytes off the front; the index of the first range with bytes left."""
    if count_whole(vec, first) == moved:
        return min(first + IOV_MAX, len(vec))
    ends = np.cumsum(vec[first:, 1])
    whole = int(np.searchsorted(ends, np.uint64(moved), side="right"))
    part = moved - (int(ends[whole - 1]) if whole else 0)
    first += whole
    if part:
        vec[first, 0] += np.uint64(part)
        vec[first, 1] -= np.uint64(part)
    return first


def count_whole(vec: Vector, first: int) -> int:
    """Bytes that one call starting at `first` can move at most."""
    return int(vec[first : first + IOV_MAX, 1].sum())
