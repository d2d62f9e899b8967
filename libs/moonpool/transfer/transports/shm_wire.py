"""Messages on the shm handshake socket (Unix, SOCK_SEQPACKET: one message per packet).

    client                      owner
    Hello(epoch)            ->
                            <-  Hello(status, epoch)
    ATTACH(region, key, range) ->
                            <-  ATTACHED(the same, status, rights, region size) + descriptor
                            <-  WITHDRAWN(region, key or zeros for all keys)
    CONFIRMED(region, key)  ->      no copy under it runs any more

End of file on either side means that the other is gone.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum

from moonpool.transfer.wire import KEY_BYTES, MAGIC, VERSION, BadFrame, Status

ALL_KEYS = bytes(KEY_BYTES)
MESSAGE_BYTES_MAX = 128
_MESSAGE = struct.Struct("<4sBBBBQQQQ16s")
MESSAGE_BYTES = _MESSAGE.size


class Kind(IntEnum):
    ATTACH = 1
    ATTACHED = 2
    WITHDRAWN = 3
    CONFIRMED = 4


RIGHTS = ("", "r", "w", "rw")  # by code


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    region: int
    key: bytes = field(repr=False)
    offset: int = 0  # ATTACH, ATTACHED: the grant's range, as its holder sees it
    length: int = 0
    size: int = 0  # ATTACHED: of the region
    status: Status = Status.OK
    rights: str = ""

    def pack(self) -> bytes:
        return _MESSAGE.pack(
            MAGIC,
            VERSION,
            int(self.kind),
            int(self.status),
            RIGHTS.index(self.rights),
            self.region,
            self.offset,
            self.length,
            self.size,
            self.key,
        )


def unpack(data: bytes) -> Message:
    """Raises BadFrame."""
    if len(data) != MESSAGE_BYTES:
        raise BadFrame(f"message of {len(data)} bytes")
    magic, version, kind, status, rights, region, offset, length, size, key = _MESSAGE.unpack(data)
    if magic != MAGIC or version != VERSION or rights >= len(RIGHTS):
        raise BadFrame("not our magic or version")
    try:
        return Message(
            Kind(kind), region, key, offset, length, size, Status(status), RIGHTS[rights]
        )
    except ValueError as error:
        raise BadFrame(str(error)) from error
