"""Frames of a line.

    [seal u64][magic, version, kind, 0, number u32, body u32, payload u64][body][payload]

Head and body are sealed (xxh3), so that no flipped bit is ever taken for a question; the payload
proves itself by checksums of its own.
"""

import errno
import struct
from dataclasses import dataclass

from xxhash import xxh3_64, xxh3_64_intdigest

from moonpool.transfer.vectored import StreamBroken

MAGIC = b"MPLN"
VERSION = 1
BODY_MAX_BYTES = 1 << 20
PAYLOAD_MAX_BYTES = 2 << 30
JOINED_BYTES_MAX = 4 << 10  # of a body that is copied behind its head
_SEAL = struct.Struct("<Q")
_HEAD = struct.Struct("<4sBBHIIQ")
HEAD_BYTES = _SEAL.size + _HEAD.size


@dataclass(slots=True)
class LineFrame:
    """What one side said. Its payload is still on the line; `body` lasts until more is taken in."""

    kind: int
    number: int
    body: memoryview
    payload_bytes: int


def pack_line(kind: int, number: int, body: bytes, payload_bytes: int = 0) -> list[bytes]:
    """Head and body of a frame, to be sent one after the other."""
    head = _HEAD.pack(MAGIC, VERSION, kind, 0, number & 0xFFFFFFFF, len(body), payload_bytes)
    if len(body) <= JOINED_BYTES_MAX:
        head += body
        return [_SEAL.pack(xxh3_64_intdigest(head)) + head]
    state = xxh3_64(head)
    state.update(body)
    return [_SEAL.pack(state.intdigest()) + head, body]


def frame_of(whole: memoryview) -> LineFrame:
    """Raises StreamBroken when it is not what was sent."""
    (seal,) = _SEAL.unpack_from(whole)
    _, _, kind, _, number, _, payload_bytes = _HEAD.unpack_from(whole, _SEAL.size)
    if xxh3_64_intdigest(whole[_SEAL.size :]) != seal:
        raise StreamBroken(errno.EPROTO, "a head was damaged")
    return LineFrame(kind, number, whole[HEAD_BYTES:], payload_bytes)


def body_bytes_of(head: memoryview) -> int:
    """Raises StreamBroken on what nobody of us sends."""
    magic, version, _, _, _, body_bytes, payload_bytes = _HEAD.unpack_from(head, _SEAL.size)
    if magic != MAGIC or version != VERSION or body_bytes > BODY_MAX_BYTES:
        raise StreamBroken(errno.EPROTO, "not our magic, version or size")
    if payload_bytes > PAYLOAD_MAX_BYTES:
        raise StreamBroken(errno.EPROTO, f"a payload of {payload_bytes} bytes")
    return int(body_bytes)
