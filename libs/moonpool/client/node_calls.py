"""A node's verbs as typed calls."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from moonpool.bus import Bus, RequestTimeout
from moonpool.client.watch import answer_of, is_answered
from moonpool.kv import BlockKey, pack_keys
from moonpool.messages import Subjects, TenantId
from moonpool.messages.absence import AbsentReply, AbsentRequest
from moonpool.messages.codec import decode, encode
from moonpool.messages.keyed import LineReply, LineRequest
from moonpool.messages.store import (
    DrainReply,
    DrainRequest,
    GetEndReply,
    GetEndRequest,
    GetStartReply,
    GetStartRequest,
    ListReply,
    ListRequest,
    PinReply,
    PinRequest,
    PromoteReply,
    PromoteRequest,
    PutEndItem,
    PutEndReply,
    PutEndRequest,
    PutItem,
    PutStartReply,
    PutStartRequest,
    PutWholeReply,
    PutWholeRequest,
    RemoveReply,
    RemoveRequest,
    SecureReply,
    SecureRequest,
    StatsReply,
    StatsRequest,
    WholeItem,
    WipeReply,
    WipeRequest,
)

R = TypeVar("R", bound=msgspec.Struct)

TIMEOUT_S = 5.0
SILENT_S = 0.4  # without a word about a question that takes no time


class Quick(Protocol):
    tenant: TenantId

    async def call(self, node: str, verb: str, request: msgspec.Struct, kind: type[R]) -> R | None:
        """The node's answer to a question of that tenant, or None: nothing happened, and the bus is
        to be asked. Raises as a question on the bus."""


class NodeCalls:
    """Any node or instance by its id. Every call raises the bus's errors (NoResponder at once when
    the node is gone) and the node's own."""

    def __init__(self, bus: Bus, subjects: Subjects, timeout_s: float = TIMEOUT_S) -> None:
        self._bus = bus
        self._subjects = subjects
        self._timeout_s = timeout_s
        self.quick: Quick | None = None  # past the bus, for those of its own tenant

    async def put_start(
        self,
        node: str,
        tenant: TenantId,
        items: Sequence[PutItem],
        ttl_s: float,
        *,
        run_blocks: int = 0,
        replicas: int = 1,
    ) -> PutStartReply:
        """`run_blocks`: of the prompt that they belong to. `replicas`: the node sees to copies."""
        request = PutStartRequest(tenant, list(items), ttl_s, run_blocks, replicas)
        return await self._ask(node, "put_start", request, PutStartReply)

    async def put_end(
        self, node: str, put: int, items: Sequence[PutEndItem], *, durable: bool = False
    ) -> list[str]:
        """`durable`: answered once a lower tier has them ("not_durable" if none has in time)."""
        request = PutEndRequest(put, list(items), durable)
        reply = await self._ask(node, "put_end", request, PutEndReply)
        return reply.results

    async def get_start(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        lease_s: float,
        wait_s: float = 0.0,
        *,
        inline_bytes: int = 0,
        tail_bytes: int = 0,
        run_blocks: int = 0,
    ) -> GetStartReply:
        """`wait_s`, which must be well below our time-out: for blocks from lower tiers."""
        request = GetStartRequest(
            tenant,
            pack_keys(keys),
            lease_s,
            wait_s,
            inline_bytes=inline_bytes,
            tail_bytes=tail_bytes,
            run_blocks=run_blocks,
        )
        if not lease_s:  # a lease is had from whom it will be given back to
            return await self._ask_quickly(node, tenant, "get_start", request, GetStartReply)
        return await self._ask(node, "get_start", request, GetStartReply)

    async def promote(
        self, node: str, tenant: TenantId, keys: Sequence[BlockKey], run_blocks: int = 0
    ) -> int:
        """Blocks that will be read soon start on their way up from lower tiers; how many."""
        request = PromoteRequest(tenant, pack_keys(keys), run_blocks)
        return (await self._ask(node, "promote", request, PromoteReply)).loading

    async def get_end(self, node: str, lease: int) -> bool:
        return (await self._ask(node, "get_end", GetEndRequest(lease), GetEndReply)).valid

    async def get_end_unheard(self, node: str, lease: int) -> None:
        """Gives a lease back without waiting for a word about it."""
        subject = self._subjects.store(node, "get_end")
        await self._bus.publish(subject, encode(GetEndRequest(lease)))

    async def put_whole(self, node: str, tenant: TenantId, items: Sequence[WholeItem]) -> list[str]:
        """Small objects in the message itself."""
        request = PutWholeRequest(tenant, list(items))
        reply = await self._ask_quickly(node, tenant, "put_whole", request, PutWholeReply)
        return reply.results

    async def list_names(
        self, node: str, tenant: TenantId, prefix: str, after: str, limit: int
    ) -> ListReply:
        request = ListRequest(tenant, prefix, after, limit)
        return await self._ask(node, "list", request, ListReply)

    async def wipe(self, node: str, tenant: TenantId) -> int:
        return (await self._ask(node, "wipe", WipeRequest(tenant), WipeReply)).removed

    async def absent(self, node: str, request: AbsentRequest) -> int:
        """It keeps what was changed for nodes that do not answer; for how many."""
        return (await self._ask(node, "absent", request, AbsentReply)).noted

    async def remove(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        reason: str = "",
        *,
        generations: Sequence[int] = (),
    ) -> list[str]:
        request = RemoveRequest(tenant, pack_keys(keys), reason, list(generations))
        return (await self._ask(node, "remove", request, RemoveReply)).results

    @property
    def message_max_bytes(self) -> int:
        """What a request may have without being cut into parts."""
        return self._bus.payload_max_bytes // 2

    async def pin(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        kind: str,
        ttl_s: float,
        replicas: int = 1,
    ) -> list[str]:
        request = PinRequest(tenant, pack_keys(keys), kind, ttl_s, replicas)
        return (await self._ask(node, "pin", request, PinReply)).results

    async def pin_told(
        self, node: str, tenant: TenantId, keys: Sequence[BlockKey], kind: str, ttl_s: float
    ) -> PinReply:
        """As `pin`, and how they were pinned before."""
        request = PinRequest(tenant, pack_keys(keys), kind, ttl_s)
        return await self._ask(node, "pin", request, PinReply)

    async def secure(
        self, node: str, tenant: TenantId, keys: Sequence[BlockKey], wait_s: float
    ) -> list[str]:
        """`wait_s`, which must be well below our time-out: for lower tiers to take them."""
        request = SecureRequest(tenant, pack_keys(keys), wait_s)
        return (await self._ask(node, "secure", request, SecureReply)).results

    async def stats(self, node: str) -> StatsReply:
        return await self._ask(node, "stats", StatsRequest(), StatsReply)

    async def drain(self, node: str, within_s: float = 60.0) -> bool:
        """It gives away what is worth keeping within that time, and leaves."""
        request = DrainRequest(within_s)
        return (await self._ask(node, "drain", request, DrainReply)).accepted

    async def line(self, node: str, tenant: TenantId, timeout_s: float) -> LineReply:
        """A capability for lines to the node."""
        subject = self._subjects.store(node, "line")
        answer = await self._bus.request(subject, encode(LineRequest(tenant)), timeout_s)
        return decode(answer, LineReply)

    async def _ask_quickly(
        self, node: str, tenant: TenantId, verb: str, request: msgspec.Struct, kind: type[R]
    ) -> R:
        if self.quick is not None and self.quick.tenant == tenant:
            reply = await self.quick.call(node, verb, request, kind)
            if reply is not None:
                return reply
        return await self._ask(node, verb, request, kind)

    async def _ask(self, node: str, verb: str, request: msgspec.Struct, kind: type[R]) -> R:
        subject = self._subjects.store(node, verb)
        asking = self._bus.request(subject, encode(request), self._timeout_s)
        return decode(await answer_of(asking, lambda: self.probe(node)), kind)

    async def probe(self, node: str) -> None:
        """Raises NoResponder when nobody serves as this node, RequestTimeout when it is silent. One
        that is merely busy answers: this waits for nothing that it does."""
        subject = self._subjects.store(node, "get_end")
        asking = self._bus.request(subject, encode(GetEndRequest(0)), self._timeout_s)
        if not await is_answered(asking, SILENT_S) and self._bus.is_connected:
            raise RequestTimeout(subject, SILENT_S)
