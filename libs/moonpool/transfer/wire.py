"""What travels on a tcp stream and on the shm handshake socket: fixed, little-endian structs.

A tcp stream starts with one Hello each way. Then frames from the client, each answered by one
Reply in order: a READ's reply is followed by the bytes, a WRITE's frame is followed by them. A
frame is a head with the first range, then the other ranges.
Ranges are (offset into the region, length) pairs, so that no peer ever learns an address.

A sealed frame has a magic of its own, and 8 bytes of checksum after its ranges and again after its
payload; its reply has them at the end. So no byte can change on the way and count.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum

from moonpool.transfer.errors import BadTransfer, GrantRefused, PeerLost, TransferCorrupt

MAGIC = b"MPTX"
SEALED_MAGIC = b"MPTS"
VERSION = 1
RANGES_MAX = 1000  # per frame; with its header it still fits one vectored call (IOV_MAX 1024)
FRAME_BYTES_MAX = 64 << 20  # payload of one frame
KEY_BYTES = 16
EPOCH_BYTES = 32

_HELLO = struct.Struct("<4sBBH32s")
_FRAME = struct.Struct("<4sBBHIQQQ16sQQ")
_REPLY = struct.Struct("<4sBBHQQ")
HELLO_BYTES = _HELLO.size
FRAME_BYTES = _FRAME.size
REPLY_BYTES = _REPLY.size
RANGE_BYTES = 16


class WireOp(IntEnum):
    READ = 1
    WRITE = 2
    NAME = 16  # this and the next carry a stream's name instead of a key, and are not answered
    FENCE = 17
    LINE = 18  # makes the stream a line; `key` is a capability for it (line_desk.py)


_OPS = {op.value: op for op in WireOp}


class Status(IntEnum):
    OK = 0
    UNKNOWN = 1
    EXPIRED = 2
    RIGHTS = 3
    BOUNDS = 4
    EPOCH = 5
    BUSY = 6
    BAD_FRAME = 7
    NOT_SHAREABLE = 8
    CORRUPT = 9


_STATUSES = {status.value: status for status in Status}
REASONS = {
    Status.UNKNOWN: "unknown",
    Status.EXPIRED: "expired",
    Status.RIGHTS: "rights",
    Status.BOUNDS: "bounds",
    Status.EPOCH: "epoch",
}
STATUS_OF = {reason: status for status, reason in REASONS.items()}
_TEXTS = {
    "unknown": "was never issued, was revoked, or its region is gone",
    "expired": "has expired",
    "rights": "does not allow this operation",
    "bounds": "does not cover this range",
    "epoch": "was issued by an earlier life of its owner",
}


def check_of(name: bytes) -> int:
    """Stands in a frame beside a name that it carries, so that noise is not taken for one."""
    return int.from_bytes(name[:8], "little") >> 1


class BadFrame(Exception):
    """Bytes that no correct peer sends. Never leaves the package."""


def refused(segment: str, reason: str) -> GrantRefused:
    return GrantRefused(f"grant of {segment} {_TEXTS[reason]}", reason=reason)


def error_of(status: Status, segment: str) -> Exception:
    """The typed error that a reply's status stands for."""
    if status in REASONS:
        return refused(segment, REASONS[status])
    if status is Status.BUSY:
        return PeerLost(f"{segment} takes no more connections")
    if status is Status.CORRUPT:
        return TransferCorrupt(f"bytes were damaged on their way to {segment}")
    return BadTransfer(f"{segment} did not accept a frame: {status.name.lower()}")


def pack_hello(epoch: str, status: Status = Status.OK) -> bytes:
    return _HELLO.pack(MAGIC, VERSION, int(status), 0, epoch.encode()[:EPOCH_BYTES])


def unpack_hello(data: bytes | bytearray | memoryview) -> tuple[Status, str]:
    """(status, epoch). Raises BadFrame."""
    if len(data) != HELLO_BYTES:
        raise BadFrame("hello is short")
    magic, version, status, _, epoch = _HELLO.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise BadFrame("not our magic or version")
    try:
        return Status(status), epoch.rstrip(b"\0").decode("ascii")
    except ValueError as error:
        raise BadFrame(str(error)) from error


@dataclass(slots=True)  # never changed; to freeze it would double the price of making it
class Frame:
    """0 < ranges <= RANGES_MAX, 0 < payload <= FRAME_BYTES_MAX."""

    op: WireOp
    ranges: int
    request: int
    region: int
    payload: int
    key: bytes = field(repr=False)
    offset: int  # of the first range
    length: int
    sealed: bool = False

    def pack(self) -> bytes:
        return _FRAME.pack(
            SEALED_MAGIC if self.sealed else MAGIC,
            VERSION,
            int(self.op),
            int(self.sealed),
            self.ranges,
            self.request,
            self.region,
            self.payload,
            self.key,
            self.offset,
            self.length,
        )


def unpack_frame(data: bytes | bytearray | memoryview) -> Frame:
    """Raises BadFrame on anything that could not come from a correct client."""
    magic, version, op, flags, ranges, request, region, payload, key, offset, length = (
        _FRAME.unpack(data)
    )
    sealed = magic == SEALED_MAGIC
    if not (sealed or magic == MAGIC) or version != VERSION or flags != int(sealed):
        raise BadFrame("not our magic, version or flags")
    wire_op = _OPS.get(op)
    if wire_op is None:
        raise BadFrame(f"operation {op}")
    if not 0 < ranges <= RANGES_MAX:
        raise BadFrame(f"{ranges} ranges")
    if not 0 < payload <= FRAME_BYTES_MAX:
        raise BadFrame(f"payload of {payload} bytes")
    return Frame(wire_op, ranges, request, region, payload, key, offset, length, sealed)


def pack_reply(status: Status, request: int, payload: int) -> bytes:
    return _REPLY.pack(MAGIC, VERSION, int(status), 0, request, payload)


def unpack_reply(data: bytes | bytearray | memoryview) -> tuple[Status, int, int]:
    """(status, request, payload). Raises BadFrame."""
    magic, version, status, _, request, payload = _REPLY.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise BadFrame("not our magic or version")
    known = _STATUSES.get(status)
    if known is None:
        raise BadFrame(f"status {status}")
    return known, request, payload
