"""Messages of the rdma handshake connection (tcp): a length, then one of the structs below.

    client                              owner
    Hello(epoch)                    ->                               (as on a tcp stream)
                                    <-  Hello(status, epoch)
    Connect(ask, device, end)       ->      no queue pair for who has no valid grant
                                    <-  Connected(end, granted)  or  Granted(status), and the end
    Ask(region, key, range)         ->
                                    <-  Granted(status, rights, address, a key per queue pair)
                                    <-  Withdrawn(region, key or none for all)

The connection is the other side's pulse: its end is the end of the queue pairs. A client that
gives up a link with WRITEs under way ends its own half, and the owner ends the other once the queue
pairs are gone. What was given up without that is named with the next Connect (see `fences.py`).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from moonpool.transfer.wire import BadFrame

QUEUES_MAX = 16
MESSAGE_BYTES_MAX = 4096
FENCES_MAX = 128  # names in one message
PREFIX_BYTES = 4

_Word = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Three = Annotated[int, Meta(ge=0, lt=1 << 24)]
_Two = Annotated[int, Meta(ge=0, lt=1 << 16)]
_Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Name = Annotated[bytes, Meta(max_length=16)]


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    number: _Three
    psn: _Three


class End(msgspec.Struct, frozen=True):
    """How one side's queue pairs are reached."""

    gid: Annotated[str, Meta(max_length=64)]
    lid: _Two
    mtu: Annotated[int, Meta(ge=1, le=5)]  # as the verbs count it: 1 is 256 bytes, 5 is 4096
    reads_max: Annotated[int, Meta(ge=1, le=255)]
    queues: Annotated[list[QueueEnd], Meta(min_length=1, max_length=QUEUES_MAX)]


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """For the keys to a grant's range; `offset` counts from the region's start."""

    region: _Word
    key: _Key
    offset: _Word
    length: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]

    def __repr__(self) -> str:
        """Without the key: what is printed ends in logs."""
        return f"<Ask {self.region}[{self.offset}, +{self.length})>"


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    ask: Ask
    device: Annotated[str, Meta(max_length=64)]
    end: End
    name: _Name = b""  # of this link; empty from who knows no names
    fences: Annotated[list[_Key], Meta(max_length=FENCES_MAX)] = []  # links and streams given up


class Granted(msgspec.Struct, frozen=True, tag="granted"):
    ask: Ask
    status: Annotated[int, Meta(ge=0, lt=256)]
    rights: str = ""  # as the owner says, whatever the grant in the holder's hand says
    address: _Word = 0  # of the grant's first byte
    keys: list[int] = []  # one per queue pair


class Connected(msgspec.Struct, frozen=True, tag="connected"):
    end: End
    granted: Granted


class Withdrawn(msgspec.Struct, frozen=True, tag="withdrawn"):
    region: _Word
    key: bytes  # empty: all grants of the region


Message = Ask | Connect | Granted | Connected | Withdrawn
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(PREFIX_BYTES, "little") + body


def unpack(buffer: bytearray) -> Message | None:
    """Takes the first message off `buffer`; None while it is not all there. Raises BadFrame."""
    if len(buffer) < PREFIX_BYTES:
        return None
    length = int.from_bytes(buffer[:PREFIX_BYTES], "little")
    if not 0 < length <= MESSAGE_BYTES_MAX:
        raise BadFrame(f"message of {length} bytes")
    if len(buffer) < PREFIX_BYTES + length:
        return None
    body = bytes(buffer[PREFIX_BYTES : PREFIX_BYTES + length])
    del buffer[: PREFIX_BYTES + length]
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BadFrame(str(error)) from error
