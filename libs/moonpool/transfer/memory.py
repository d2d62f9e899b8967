"""Memory as transports see it: an address, a length and, when shareable, a file descriptor.

A mapping lives exactly as long as something refers to it: the `Memory`, or any view of it that a
caller still holds. So no view can ever point into unmapped memory.
"""

import ctypes
import fcntl
import mmap
import os
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

from moonpool.transfer.arguments import number
from moonpool.transfer.errors import BadTransfer

HUGE_PAGE_BYTES = 2 << 20
LENGTH_MAX = 1 << 56  # more than any address space has
_MADV_HUGEPAGE = 14
_MAP_FIXED = 0x10
_PROT_NONE = 0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.munmap.restype = ctypes.c_int
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.restype = ctypes.c_int
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """Owns one mmap. numpy keeps it alive as the base of every array made from it."""

    def __init__(self, address: int, length: int, writable: bool) -> None:
        self._address = address
        self._length = length
        self._munmap = _libc.munmap
        self.__array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, not writable),
            "version": 3,
        }

    def __del__(self) -> None:
        self._munmap(self._address, self._length)


class Memory:
    """A byte range of this process. `fd` is -1 when no other process can map it."""

    def __init__(self, address: int, length: int, array: Any, fd: int = -1) -> None:
        self.address = address
        self.length = length
        self.array = array  # uint8 [length]; keeps the bytes alive
        self.fd = fd

    def close_fd(self) -> None:
        """Nobody else can map it from now on. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _map(fd: int, length: int, *, writable: bool) -> _Mapping:
    """Maps `fd` shared, aligned so that huge pages fit. Raises OSError."""
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    page = mmap.PAGESIZE
    size = -(-length // page) * page
    slack = HUGE_PAGE_BYTES if length >= HUGE_PAGE_BYTES else page
    anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _libc.mmap(None, size + slack, _PROT_NONE, anywhere, -1, 0)
    if start in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), "mmap: no address space")
    address = -(-start // slack) * slack
    got = _libc.mmap(address, size, prot, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
    if got != address:
        error = ctypes.get_errno()
        _libc.munmap(start, size + slack)
        raise OSError(error, f"mmap of {length} bytes: {os.strerror(error)}")
    if address > start:
        _libc.munmap(start, address - start)
    if (tail := start + slack - address) > 0:
        _libc.munmap(address + size, tail)
    _libc.madvise(address, size, _MADV_HUGEPAGE)  # a wish; kernels without it say EINVAL
    return _Mapping(address, size, writable)


def _memory(fd: int, length: int, *, writable: bool, keep_fd: bool) -> Memory:
    array = np.asarray(_map(fd, length, writable=writable))[:length]
    return Memory(int(array.ctypes.data), length, array, fd if keep_fd else -1)


def allocate(length: int) -> Memory:
    """Zeroed memory in a sealed memfd: its size can never change under a peer that mapped it.
    Raises BadTransfer on a length that no memory has, OSError when the kernel has no room."""
    length = number(length, "length")
    if not 0 < length <= LENGTH_MAX:
        raise BadTransfer(f"cannot allocate {length} bytes: 1 to {LENGTH_MAX} can be")
    fd = os.memfd_create("moonpool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, length)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return _memory(fd, length, writable=True, keep_fd=True)
    except BaseException:
        os.close(fd)
        raise


def map_peer(fd: int, length: int, *, writable: bool) -> Memory:
    """Maps a descriptor that a peer handed over; the descriptor stays the caller's to close.
    Raises OSError when it is not what it claims to be: a file that could shrink under us would
    turn a copy into a fatal signal."""
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if not seals & fcntl.F_SEAL_SHRINK:
        raise OSError("the peer's memory file is not sealed against shrinking")
    if os.fstat(fd).st_size < length:
        raise OSError("the peer's memory file is shorter than its region")
    return _memory(fd, length, writable=writable, keep_fd=False)


def readonly_fd(fd: int) -> int:
    """A second descriptor of the same file that can only be read; the caller closes it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def wrap(buffer: object) -> Memory:
    """Memory of the caller's: anything with a writable, contiguous buffer, a CPU tensor, a
    `SharedMemory`, or (address, length), which the caller then keeps alive. Raises BadTransfer."""
    if isinstance(buffer, tuple):
        return _wrap_range(buffer)
    if isinstance(buffer, SharedMemory):
        buffer = buffer.buf
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "is_contiguous"):
        return _wrap_tensor(buffer)
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except TypeError as error:
        raise BadTransfer(f"{type(buffer).__name__} has no buffer to register") from error
    if view.readonly or not view.c_contiguous:
        raise BadTransfer("memory to register must be writable and contiguous")
    if not view.nbytes:
        raise BadTransfer("memory to register is empty")
    array = np.frombuffer(view.cast("B"), dtype=np.uint8)
    return Memory(int(array.ctypes.data), view.nbytes, array)


def _wrap_range(given: tuple[object, ...]) -> Memory:
    if len(given) != 2 or not all(isinstance(each, int) for each in given):
        raise BadTransfer("memory given by address is (address, length), both whole numbers")
    address, length = int(given[0]), int(given[1])  # type: ignore[call-overload]
    if length < 1 or not _is_writable(address, address + length):
        raise BadTransfer(f"[{address:#x}, +{length}) is no writable memory of this process")
    array = np.frombuffer((ctypes.c_char * length).from_address(address), dtype=np.uint8)
    return Memory(address, length, array)


def _is_writable(start: int, end: int) -> bool:
    """Whether all of it is mapped, and may be written."""
    at = start
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, access, *_ = line.split()
        first, last = (int(each, 16) for each in bounds.split("-"))
        if first <= at < last:
            if "w" not in access:
                return False
            at = last
        if at >= end:
            return True
    return False


def _wrap_tensor(tensor: Any) -> Memory:
    if str(tensor.device.type) != "cpu" or not tensor.is_contiguous():
        raise BadTransfer("a tensor to register must be contiguous and on the CPU")
    if not tensor.numel():
        raise BadTransfer("memory to register is empty")
    as_bytes = sys.modules["torch"].uint8  # a tensor is at hand, so torch is loaded
    array = tensor.detach().flatten().view(as_bytes).numpy()
    return Memory(int(array.ctypes.data), int(array.nbytes), array)
