"""What is said on a line between a reader or writer and a store node: verbs with the bytes in them.

A line is had by `mp.store.<owner>.line`: the answer holds a capability for one tenant, and no frame
names a tenant again. Each frame's kind says which message its body holds.
"""

from enum import IntEnum

import msgspec

from moonpool.messages.ids import TenantId
from moonpool.messages.segments import RegionGrant
from moonpool.messages.store import GetSlot


class Said(IntEnum):
    """Kinds of frames. A question is answered by DONE or FAILED of its number, in order."""

    GET = 1  # KeyedGet -> KeyedGot, the bytes, and one more that is 1 if they count
    PUT = 2  # KeyedPut, the bytes of all items, their checksums -> KeyedPutDone
    CALL = 3  # KeyedCall -> the verb's own reply
    END = 4  # KeyedEnd; nothing answers it
    DONE = 16
    FAILED = 17  # ErrorInfo


class LineRequest(msgspec.Struct, frozen=True):
    tenant: TenantId


class LineReply(msgspec.Struct, frozen=True):
    """A capability for lines of this tenant. `key` is empty where there are none."""

    key: bytes = b""  # 16 random bytes
    grant: RegionGrant | None = None  # to read the segment that places in answers are in
    ttl_s: float = 0.0

    def __repr__(self) -> str:
        """Without the key: what is printed ends in logs."""
        return f"<LineReply for {self.ttl_s:g} s, {self.grant!r}>"


class KeyedGet(msgspec.Struct, frozen=True, array_like=True):
    keys: bytes  # packed
    payload_max_bytes: int  # of bytes that follow the answer; what does not fit is not sent
    inline_bytes: int = 0  # as in GetStartRequest
    tail_bytes: int = 0
    run_blocks: int = 0
    starts: list[int] = []  # per key, where only a range is wanted: its chunks are sent
    lengths: list[int] = []  # -1: up to the end
    lease_s: float = 0.0  # above 0: no bytes, but a lease and where they lie; END ends it


class KeyedGot(msgspec.Struct, frozen=True, array_like=True):
    """`sent_bytes`: per slot, of the object's chunks that follow; 0 where all of it is in the slot,
    and where nothing is sent: that is to be asked for on the bus."""

    slots: list[GetSlot]
    sent_bytes: list[int] = []
    lease: int = 0
    grant: RegionGrant | None = None


class KeyedEnd(msgspec.Struct, frozen=True, array_like=True):
    lease: int


class KeyedItem(msgspec.Struct, frozen=True, array_like=True):
    key: bytes
    size_bytes: int
    chunk_bytes: int  # divides size_bytes
    replace: bool = False  # in place of what lies under the key


class KeyedPut(msgspec.Struct, frozen=True, array_like=True):
    items: list[KeyedItem]


class KeyedPutDone(msgspec.Struct, frozen=True, array_like=True):
    results: list[str]  # per item, as a put session ends


class KeyedCall(msgspec.Struct, frozen=True, array_like=True):
    verb: str  # one whose answer needs no bus: see `LINE_VERBS`
    request: msgspec.Raw  # its tenant must be the line's


LINE_VERBS = ("get_start", "put_whole")  # without a lease `get_start` is answered at once
