"""Checksums of bytes that lie in ranges of memory: xxh3, 64 bits: against damage, not forgery."""

import ctypes
from collections.abc import Iterable

from xxhash import xxh3_64

SEAL_BYTES = 8


def seal(addresses: Iterable[int], lengths: Iterable[int], *before: bytes | memoryview) -> bytes:
    """Over `before` and then the ranges. Big ones are read outside the GIL; the caller keeps the
    memory alive."""
    state = xxh3_64()
    for part in before:
        state.update(part)
    for address, length in zip(addresses, lengths, strict=True):
        state.update((ctypes.c_char * length).from_address(address))
    return state.digest()


def seal_of(*parts: bytes | memoryview) -> bytes:
    """Over plain bytes."""
    return seal((), (), *parts)
