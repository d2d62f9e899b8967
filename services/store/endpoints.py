"""The node's verbs on the bus: bytes in, bytes out."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from moonpool.bus import Endpoint, Handler
from moonpool.messages import Subjects
from moonpool.messages.codec import decode, encode
from moonpool.messages.keyed import LineRequest
from moonpool.messages.store import (
    CopyRequest,
    DrainRequest,
    GetEndRequest,
    GetStartRequest,
    ListRequest,
    PinRequest,
    PromoteRequest,
    PutEndRequest,
    PutStartRequest,
    PutWholeRequest,
    RemoveRequest,
    SecureRequest,
    SpareRequest,
    StatsRequest,
    WipeRequest,
)
from services.store.line_desk import LineDesk
from services.store.node import StoreNode

Q = TypeVar("Q", bound=msgspec.Struct)

CONCURRENCY_MAX = 256
PENDING_MAX = 4096


def node_endpoints(
    node: StoreNode, lines: LineDesk, subjects: Subjects, owner: str
) -> list[Endpoint]:
    """One endpoint per verb, under `mp.store.<owner>.`."""
    verbs = {
        "put_start": _handler(PutStartRequest, node.put_start),
        "put_end": _handler(PutEndRequest, node.put_end),
        "put_whole": _handler(PutWholeRequest, node.put_whole),
        "get_start": _handler(GetStartRequest, node.get_start),
        "promote": _handler(PromoteRequest, node.promote),
        "get_end": _handler(GetEndRequest, node.get_end),
        "list": _handler(ListRequest, node.list_names),
        "wipe": _handler(WipeRequest, node.wipe),
        "remove": _handler(RemoveRequest, node.remove),
        "secure": _handler(SecureRequest, node.secure),
        "pin": _handler(PinRequest, node.pin),
        "copy": _handler(CopyRequest, node.spread.copy),
        "spare": _handler(SpareRequest, node.spread.spare),
        "stats": _handler(StatsRequest, node.stats),
        "drain": _handler(DrainRequest, node.drain),
        "line": _handler(LineRequest, lines.line),
    }
    return [
        Endpoint(
            verb,
            subjects.store(owner, verb),
            handler,
            concurrency_max=CONCURRENCY_MAX,
            pending_max=PENDING_MAX,
        )
        for verb, handler in verbs.items()
    ]


def _handler(kind: type[Q], verb: Callable[[Q], Awaitable[msgspec.Struct]]) -> Handler:
    async def handle(payload: bytes) -> bytes:
        return encode(await verb(decode(payload, kind)))

    return handle
