"""The node's verbs on the bus: bytes in, bytes out."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from moonpool.bus import Endpoint, Handler
from moonpool.messages import Subjects
from moonpool.messages.absence import AbsentRequest, NotesRequest, RecallRequest
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
from services.store.absences import Absences
from services.store.gate import admit
from services.store.line_desk import LineDesk
from services.store.node import StoreNode

Q = TypeVar("Q", bound=msgspec.Struct)

CONCURRENCY_MAX = 256
PENDING_MAX = 4096


def node_endpoints(
    node: StoreNode, lines: LineDesk, absences: Absences, subjects: Subjects, owner: str
) -> list[Endpoint]:
    """One endpoint per verb, under `mp.store.<owner>.`."""
    verbs = {
        "put_start": _gated(PutStartRequest, node.put_start, node),
        "put_end": _gated(PutEndRequest, node.put_end, node),
        "put_whole": _gated(PutWholeRequest, node.put_whole, node),
        "get_start": _gated(GetStartRequest, node.get_start, node),
        "promote": _handler(PromoteRequest, node.promote),
        "get_end": _handler(GetEndRequest, node.get_end),
        "list": _gated(ListRequest, node.list_names, node),
        "wipe": _handler(WipeRequest, absences.wipe),
        "remove": _gated(RemoveRequest, absences.remove, node),
        "secure": _gated(SecureRequest, node.secure, node),
        "pin": _gated(PinRequest, node.pin, node),
        "copy": _handler(CopyRequest, node.spread.copy),
        "spare": _handler(SpareRequest, node.spread.spare),
        "stats": _handler(StatsRequest, node.stats),
        "drain": _handler(DrainRequest, node.drain),
        "line": _handler(LineRequest, lines.line),
        "absent": _handler(AbsentRequest, absences.absent),
        "notes": _handler(NotesRequest, absences.tell),
        "recall": _handler(RecallRequest, absences.recall),
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


def _gated(
    kind: type[Q], verb: Callable[[Q], Awaitable[msgspec.Struct]], node: StoreNode
) -> Handler:
    async def handle(payload: bytes) -> bytes:
        request = decode(payload, kind)
        if node.presence.is_away_on_bus(node.now()):
            await admit(node.presence, request)
        return encode(await verb(request))

    return handle


def _handler(kind: type[Q], verb: Callable[[Q], Awaitable[msgspec.Struct]]) -> Handler:
    async def handle(payload: bytes) -> bytes:
        return encode(await verb(decode(payload, kind)))

    return handle
