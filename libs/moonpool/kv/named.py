"""Values with a name as stored objects: their keys, and the tail that says what an object is.

    [value][name][zeros, fewer than chunks]
    [value bytes u64, name bytes u16, kind u8, version u8, magic u32]

The tail travels through every tier with the value, so that a node can list names without any other
record of them, and a reader knows a value's length before it reads it. Objects are cut into at most
`CHUNKS_MAX` equal chunks, each with its own checksum, so that a range proves itself.
"""

import hashlib
import struct
from enum import IntEnum
from typing import NamedTuple

from moonpool.kv.keys import KEY_BYTES, BlockKey

NAME_MAX_BYTES = 512
CHUNK_MIN_BYTES = 64 << 10
CHUNKS_MAX = 32
MARK = b"\x00v"  # keys of named objects begin with it, and of others as good as never

_TRAILER = struct.Struct("<QHBBI")
_VERSION = 1
_MAGIC = 0x4D504E56
TRAILER_BYTES = _TRAILER.size


class Kind(IntEnum):
    VALUE = 0  # the value itself
    MANIFEST = 1  # where its parts lie; begins with the value's length, u64


_KINDS = tuple(Kind)


class Trailer(NamedTuple):
    value_bytes: int
    name_bytes: int
    kind: Kind


def named_key(tenant: str, name: str, salt: bytes = b"") -> BlockKey:
    """The key of a name: tenants' names never meet, and without the salt nobody can guess it."""
    text = b"moonpool value\0" + f"{len(tenant)}:{tenant}:{len(salt)}:".encode() + salt
    digest = hashlib.sha256(text + name.encode()).digest()
    return BlockKey(MARK + digest[: KEY_BYTES - len(MARK)])


def part_key(key: BlockKey, version: bytes, index: int) -> BlockKey:
    """The key of one part of one version of the value named by `key`."""
    text = b"moonpool part\0" + key + version + index.to_bytes(4, "little")
    return BlockKey(b"\x01" + hashlib.sha256(text).digest()[: KEY_BYTES - 1])


def chunked(need_bytes: int) -> tuple[int, int]:
    """(size of an object, its chunk size) that holds `need_bytes` >= 1; fewer than a chunk's count
    of bytes are left over."""
    chunks = min(CHUNKS_MAX, -(-need_bytes // CHUNK_MIN_BYTES))
    chunk_bytes = -(-need_bytes // chunks)
    return chunks * chunk_bytes, chunk_bytes


def named_size(value_bytes: int, name: bytes) -> tuple[int, int]:
    """(size of the object, its chunk size) of a named value."""
    return chunked(value_bytes + len(name) + TRAILER_BYTES)


def tail_of(value_bytes: int, name: bytes, kind: Kind) -> bytes:
    """What follows the value's bytes up to the object's end."""
    size_bytes, _ = named_size(value_bytes, name)
    zeros = bytes(size_bytes - value_bytes - len(name) - TRAILER_BYTES)
    return name + zeros + _TRAILER.pack(value_bytes, len(name), kind, _VERSION, _MAGIC)


def read_trailer(end: bytes | memoryview, size_bytes: int) -> Trailer | None:
    """What the last bytes of an object of `size_bytes` say; None when it is no named value."""
    if len(end) < TRAILER_BYTES:
        return None
    value_bytes, name_bytes, kind, version, magic = _TRAILER.unpack(end[-TRAILER_BYTES:])
    if magic != _MAGIC or version != _VERSION or kind >= len(_KINDS):
        return None
    need_bytes = value_bytes + name_bytes + TRAILER_BYTES
    if name_bytes > NAME_MAX_BYTES or chunked(need_bytes)[0] != size_bytes:
        return None
    return Trailer(value_bytes, name_bytes, _KINDS[kind])


def read_name(view: memoryview, trailer: Trailer) -> str:
    """The name in a whole object. UnicodeDecodeError when it holds none."""
    return bytes(view[trailer.value_bytes : trailer.value_bytes + trailer.name_bytes]).decode()


def value_size(view: memoryview, trailer: Trailer) -> int:
    """Bytes of the value that a whole object stands for."""
    if trailer.kind is Kind.VALUE or trailer.value_bytes < 8:
        return trailer.value_bytes
    return int.from_bytes(view[:8], "little")
