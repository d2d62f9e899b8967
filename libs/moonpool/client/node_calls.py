"""A node's verbs as typed calls."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from moonpool.bus import Bus
from moonpool.kv import BlockKey, pack_keys
from moonpool.messages import Subjects, TenantId
from moonpool.messages.codec import decode, encode
from moonpool.messages.store import (
    DrainReply,
    DrainRequest,
    GetEndReply,
    GetEndRequest,
    GetStartReply,
    GetStartRequest,
    PinReply,
    PinRequest,
    PutEndItem,
    PutEndReply,
    PutEndRequest,
    PutItem,
    PutStartReply,
    PutStartRequest,
    RemoveReply,
    RemoveRequest,
    StatsReply,
    StatsRequest,
)

R = TypeVar("R", bound=msgspec.Struct)

TIMEOUT_S = 5.0


class NodeCalls:
    """Any node or instance by its id. Every call raises the bus's errors (NoResponder at once when
    the node is gone) and the node's own."""

    def __init__(self, bus: Bus, subjects: Subjects, timeout_s: float = TIMEOUT_S) -> None:
        self._bus = bus
        self._subjects = subjects
        self._timeout_s = timeout_s

    async def put_start(
        self, node: str, tenant: TenantId, items: Sequence[PutItem], ttl_s: float
    ) -> PutStartReply:
        request = PutStartRequest(tenant, list(items), ttl_s)
        return await self._ask(node, "put_start", request, PutStartReply)

    async def put_end(self, node: str, put: int, items: Sequence[PutEndItem]) -> list[str]:
        reply = await self._ask(node, "put_end", PutEndRequest(put, list(items)), PutEndReply)
        return reply.results

    async def get_start(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        lease_s: float,
        wait_s: float = 0.0,
    ) -> GetStartReply:
        """`wait_s`, which must be well below our time-out: for blocks from lower tiers."""
        request = GetStartRequest(tenant, pack_keys(keys), lease_s, wait_s)
        return await self._ask(node, "get_start", request, GetStartReply)

    async def get_end(self, node: str, lease: int) -> bool:
        return (await self._ask(node, "get_end", GetEndRequest(lease), GetEndReply)).valid

    async def remove(
        self, node: str, tenant: TenantId, keys: Sequence[BlockKey], reason: str = ""
    ) -> list[str]:
        request = RemoveRequest(tenant, pack_keys(keys), reason)
        return (await self._ask(node, "remove", request, RemoveReply)).results

    async def pin(
        self, node: str, tenant: TenantId, keys: Sequence[BlockKey], kind: str, ttl_s: float
    ) -> list[str]:
        request = PinRequest(tenant, pack_keys(keys), kind, ttl_s)
        return (await self._ask(node, "pin", request, PinReply)).results

    async def stats(self, node: str) -> StatsReply:
        return await self._ask(node, "stats", StatsRequest(), StatsReply)

    async def drain(self, node: str) -> bool:
        return (await self._ask(node, "drain", DrainRequest(), DrainReply)).accepted

    async def _ask(self, node: str, verb: str, request: msgspec.Struct, kind: type[R]) -> R:
        subject = self._subjects.store(node, verb)
        return decode(await self._bus.request(subject, encode(request), self._timeout_s), kind)
