"""The one codec of internal messages: msgpack of typed structs, tolerant of versions.

An unknown field is ignored and a missing new field takes its default, so that a mesh can be
upgraded node by node. Every field added after the first release needs a default.
"""

from typing import TypeVar

import msgspec

from moonpool.messages.errors import PeerError

T = TypeVar("T", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[msgspec.Struct]] = {}


class MalformedMessage(PeerError):
    """Bytes that are not a message of the expected kind. The sender is broken or not one of us."""

    code = "malformed_message"


def encode(message: msgspec.Struct) -> bytes:
    """Bytes of one message."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """One message of type `kind`. Raises MalformedMessage."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        message = decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MalformedMessage(f"not a {kind.__name__}: {error}") from error
    assert isinstance(message, kind)
    return message
