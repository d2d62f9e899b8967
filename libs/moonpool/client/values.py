"""How a value of any length becomes an object: its length, its bytes, zeros up to whole chunks."""

import hashlib

from moonpool.client.errors import CorruptValue
from moonpool.kv import KEY_BYTES, BlockKey

HEADER_BYTES = 8  # little-endian length of the value
CHUNK_BYTES = 1 << 20


def value_key(tenant: str, name: str | bytes) -> BlockKey:
    """The key of a value: tenants' names never meet, and cannot meet a KV block's either."""
    raw = name.encode() if isinstance(name, str) else name
    digest = hashlib.sha256(b"moonpool value\0" + f"{len(tenant)}:{tenant}:".encode() + raw)
    return BlockKey(digest.digest()[:KEY_BYTES])


def framed_sizes(value_bytes: int) -> tuple[int, int]:
    """(size of the object, its chunk size) for a value of `value_bytes`."""
    need = HEADER_BYTES + value_bytes
    if need <= CHUNK_BYTES:
        return need, need
    return -(-need // CHUNK_BYTES) * CHUNK_BYTES, CHUNK_BYTES


def frame_into(view: memoryview, value: bytes | bytearray | memoryview) -> None:
    """Fills `view`, which has exactly the framed size."""
    data = memoryview(value).cast("B")
    view[:HEADER_BYTES] = data.nbytes.to_bytes(HEADER_BYTES, "little")
    end = HEADER_BYTES + data.nbytes
    view[HEADER_BYTES:end] = data
    view[end:] = bytes(view.nbytes - end)


def unframe(view: memoryview) -> bytes:
    """The value, copied. Raises CorruptValue when its length makes no sense."""
    length = int.from_bytes(view[:HEADER_BYTES], "little")
    if length > view.nbytes - HEADER_BYTES:
        raise CorruptValue(f"a value of {length} bytes in an object of {view.nbytes}")
    return bytes(view[HEADER_BYTES : HEADER_BYTES + length])
