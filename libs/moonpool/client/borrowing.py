"""Bytes objects as registered memory: values move between a node and Python with no copy between.

A fresh bytes object may be filled, in terms of Python's C API, as long as nobody else has seen it.
"""

import ctypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from moonpool.transfer.base import Region, TransferEngineProtocol

_make = ctypes.pythonapi.PyBytes_FromStringAndSize
_make.argtypes, _make.restype = [ctypes.c_char_p, ctypes.c_ssize_t], ctypes.py_object


def _writable(buffer: bytes | memoryview) -> memoryview:
    """The very bytes of `buffer`."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    raw = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    raw.owner = buffer  # type: ignore[attr-defined]  # alive for as long as anybody has the view
    return memoryview(raw).cast("B")


def fresh(size_bytes: int) -> tuple[bytes, memoryview]:
    """A new bytes object of `size_bytes` >= 2, and the view to fill it by before anybody looks."""
    value: bytes = _make(None, size_bytes)
    return value, _writable(value)


@asynccontextmanager
async def fresh_bytes(
    transfer: TransferEngineProtocol, size_bytes: int
) -> AsyncIterator[tuple[bytes, Region]]:
    """A new bytes object of `size_bytes` >= 2 to be filled through its region inside, and not to be
    looked at before."""
    value: bytes = _make(None, size_bytes)
    region = transfer.register_memory(_writable(value))
    try:
        yield value, region
    finally:
        await region.unregister()


@asynccontextmanager
async def lent(transfer: TransferEngineProtocol, view: memoryview) -> AsyncIterator[Region]:
    """A caller's bytes, at least one, as a region that is only read."""
    region = transfer.register_memory(_writable(view))
    try:
        yield region
    finally:
        await region.unregister()
