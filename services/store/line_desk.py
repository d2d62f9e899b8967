"""Lines to this node: who may have one, for whom it speaks, and all that are open."""

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from moonpool.messages.ids import TenantId, check_id
from moonpool.messages.keyed import LineReply, LineRequest
from moonpool.transfer import TransferEngine
from moonpool.transfer.lines import Line
from services.store.line_session import LineSession
from services.store.node import StoreNode

CAPABILITY_S = 600.0
CAPABILITIES_MAX = 4096  # the oldest are forgotten
LINES_MAX = 512


@dataclass(frozen=True, slots=True)
class _Capability:
    tenant: TenantId
    expires_s: float


class LineDesk:
    """One per node; belongs to its loop."""

    def __init__(self, node: StoreNode, transfer: TransferEngine) -> None:
        self._node = node
        self._transfer = transfer
        self._given: OrderedDict[bytes, _Capability] = OrderedDict()
        self._sessions: dict[LineSession, bytes] = {}  # and the capability of each, oldest first
        self._counters = node.core.counters
        self._serves = transfer.lines.serve(self._take)
        node.end_lines = self.revoke

    async def line(self, request: LineRequest) -> LineReply:
        """A capability for one tenant; an empty one where there are no lines."""
        check_id(request.tenant, "tenant")
        if not self._serves:
            return LineReply()
        key = secrets.token_bytes(16)
        expires_s = self._node.now() + CAPABILITY_S
        self._given[key] = _Capability(request.tenant, expires_s)
        while len(self._given) > CAPABILITIES_MAX:
            self._given.popitem(last=False)
        return LineReply(key, self._node.readers, CAPABILITY_S)

    def revoke(self, tenant: TenantId) -> None:
        """What was given out for a tenant is worth nothing any more, and its lines end: at once,
        or with the answer that is on its way."""
        gone = {key for key, given in self._given.items() if given.tenant == tenant}
        for key in gone:
            del self._given[key]
        for session, key in list(self._sessions.items()):
            if key in gone:
                session.expire()

    def _take(self, line: Line, key: bytes) -> None:
        given = self._given.get(key)
        if given is None or given.expires_s <= self._node.now():
            self._counters["lines_refused"] += 1
            line.close()
            return
        if len(self._sessions) >= LINES_MAX:
            idle = next((session for session in self._sessions if not session.is_busy), None)
            if idle is None:
                self._counters["lines_refused"] += 1
                line.close()
                return
            idle.close()
        session = LineSession(
            self._node,
            line,
            given.tenant,
            given.expires_s,
            self._counters,
            self._gone,
            self._transfer.lines.moved,
        )
        self._sessions[session] = key
        session.begin()

    def _gone(self, session: LineSession) -> None:
        self._sessions.pop(session, None)

    async def close(self) -> None:
        """Every line ends, and their threads. Idempotent."""
        self._serves = False
        self._given.clear()
        sessions = list(self._sessions)
        for session in sessions:
            session.close()
        await asyncio.gather(*(session.wait_closed() for session in sessions))
