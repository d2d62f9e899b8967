"""sendmsg and recvmsg over tables of (address, length), outside the GIL and without a Python object
per range. The caller keeps the memory alive and the socket open for as long as a call runs: only
the thread that uses a socket here may close it, others may shut it down."""

import contextlib
import ctypes
import errno
import os
import socket
import ssl
import struct
from typing import Any

import numpy as np

from moonpool.transfer.slices import Column

IOV_MAX = 1024
FEW = 8  # ranges that are counted faster one by one than in a column
SAME_HOST_BUFFER_BYTES = 256 << 10
BURST_BYTES = 1 << 20
VANISHED_S = 20  # without a word from the other host's kernel; twice what a frame may stall
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S = 5, 5  # how soon an idle stream asks for one, and how often
# As plain numbers: flags of the enum take a microsecond to join.
_NOW = int(socket.MSG_DONTWAIT)
_SEND = int(socket.MSG_NOSIGNAL)
_SEND_NOW = _SEND | _NOW
_RECEIVE = int(socket.MSG_WAITALL)
_RANGE = struct.Struct("@QQ")
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


def set_timeouts(sock: socket.socket, send_s: float, receive_s: float) -> None:
    """A blocking call without any progress for so long ends in StreamBroken. 0: never."""
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(max(send_s, receive_s) or None)
        return
    for option, seconds in ((socket.SO_SNDTIMEO, send_s), (socket.SO_RCVTIMEO, receive_s)):
        micros = int(seconds * 1e6)
        value = struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)
        sock.setsockopt(socket.SOL_SOCKET, option, value)


def tune(sock: socket.socket) -> None:
    """Of a connected stream. Between processes of one host, buffers that stay in the cache are up
    to half as fast again as the kernel chooses; over a network its choice is the right one, and a
    host that vanished is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sock.getpeername()[0] == sock.getsockname()[0]:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SAME_HOST_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SAME_HOST_BUFFER_BYTES)
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S),
        (socket.TCP_KEEPCNT, VANISHED_S // KEEPALIVE_EVERY_S),
        (socket.TCP_USER_TIMEOUT, VANISHED_S * 1000),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def tune_for_bursts(sock: socket.socket) -> None:
    """After `tune`, where a thread must be woken before much is taken in: its sender goes on
    meanwhile."""
    if sock.getpeername()[0] == sock.getsockname()[0]:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BURST_BYTES)


def shut(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Ends a connection under the thread that uses it, from any thread: the kernel's call alone,
    for a tls socket's own would take its state away as well."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)


class Vector:
    """A table of ranges, filled anew for each call. One per thread."""

    def __init__(self, capacity: int = IOV_MAX) -> None:
        self._table = np.zeros((capacity, 2), np.uint64)  # [ranges, 2]: address, length
        self._bytes = self._table.data.cast("B")
        self._address = int(self._table.ctypes.data)
        self._count = 0
        self._first = 0  # ranges before it are done
        self.moved_bytes = 0  # since it was cleared
        self._header = _Msghdr()
        self._pointer = ctypes.addressof(self._header)

    def clear(self) -> None:
        self._count = self._first = self.moved_bytes = 0

    def add(self, address: int, length: int) -> None:
        _RANGE.pack_into(self._bytes, 16 * self._count, address, length)
        self._count += 1

    def add_all(self, addresses: Column, lengths: Column, base: int = 0) -> None:
        """`base` is added to every address."""
        if len(addresses) == 1:
            self.add(int(addresses[0]) + base, int(lengths[0]))
            return
        end = self._count + len(addresses)
        self._table[self._count : end, 0] = addresses
        self._table[self._count : end, 0] += np.uint64(base)
        self._table[self._count : end, 1] = lengths
        self._count = end

    def send(self, fd: int) -> None:
        """Sends every byte; the table is used up. Raises StreamBroken."""
        self._move(_libc.sendmsg, fd, _SEND)

    def receive(self, fd: int) -> None:
        """Fills every byte; the table is used up. Raises StreamBroken."""
        self._move(_libc.recvmsg, fd, _RECEIVE)

    def try_send(self, fd: int) -> bool:
        """Sends what goes out without waiting; True when that was the rest. Raises StreamBroken."""
        return self._move(_libc.sendmsg, fd, _SEND_NOW)

    def try_receive(self, fd: int, *, once: bool = False) -> bool:
        """Takes what has arrived, `once`: by one call of the kernel's; True when that was the rest.
        Raises StreamBroken."""
        return self._move(_libc.recvmsg, fd, _NOW, once)

    def _move(self, call: Any, fd: int, flags: int, once: bool = False) -> bool:
        header = self._header
        while self._first < self._count:
            header.iov = self._address + 16 * self._first
            header.iovlen = min(self._count - self._first, IOV_MAX)
            moved = call(fd, self._pointer, flags)
            if moved <= 0:
                code = ctypes.get_errno() if moved < 0 else errno.ECONNRESET
                if code == errno.EINTR:
                    continue
                if code == errno.EAGAIN and flags & _NOW:
                    return False
                raise StreamBroken(code, os.strerror(code))
            self.moved_bytes += moved
            self._advance(moved)
            if once:
                break
        return self._first == self._count

    def _advance(self, moved: int) -> None:
        """Takes `moved` bytes off the front."""
        if self._count - self._first > FEW:
            self._advance_far(moved)
            return
        for index in range(self._first, self._count):
            address, length = _RANGE.unpack_from(self._bytes, 16 * index)
            if moved < length:
                _RANGE.pack_into(self._bytes, 16 * index, address + moved, length - moved)
                self._first = index
                return
            moved -= length
        self._first = self._count

    def _advance_far(self, moved: int) -> None:
        """The same across many ranges."""
        lengths = self._table[self._first : self._count, 1]
        if moved == int(lengths.sum()):
            self._first = self._count
            return
        ends = np.cumsum(lengths)
        whole = int(np.searchsorted(ends, np.uint64(moved), side="right"))
        part = moved - (int(ends[whole - 1]) if whole else 0)
        self._first += whole
        if part:
            self._table[self._first, 0] += np.uint64(part)
            self._table[self._first, 1] -= np.uint64(part)


def wait_all(sock: socket.socket) -> int:
    """The flag that makes a read wait for all of its bytes; a tls socket takes none."""
    return 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL


def receive_into(sock: socket.socket, buffer: memoryview) -> None:
    """Fills a small buffer. Raises StreamBroken."""
    got, flags = 0, wait_all(sock)
    while got < len(buffer):
        try:
            part = sock.recv_into(buffer[got:] if got else buffer, 0, flags)
        except OSError as error:
            raise StreamBroken(error.errno, error.strerror) from error
        if not part:
            raise StreamBroken(errno.ECONNRESET, "closed by the peer")
        got += part
