"""Nodes that are away, and what becomes of names meanwhile: kept for others, asked for by us."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import NoReturn, TypeVar

import msgspec

from moonpool.bus import Bus, NoResponder, RequestTimeout
from moonpool.clock import Clock
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError, Subjects, TenantId
from moonpool.messages.absence import (
    AbsentReply,
    AbsentRequest,
    Note,
    NotesReply,
    NotesRequest,
    RecallReply,
    RecallRequest,
)
from moonpool.messages.codec import decode, encode
from moonpool.messages.ids import check_id
from moonpool.messages.store import RemoveReply, RemoveRequest, WipeReply, WipeRequest
from moonpool.runtime import Members
from moonpool.runtime.members_core import Change, ChangeKind
from services.store.asking import check_extent
from services.store.node import ERASED_MAX_S, StoreNode, keys_of
from services.store.voiding import drop_named, drop_names, drop_prefix

R = TypeVar("R", bound=msgspec.Struct)

LOOK_S = 0.1
ASK_MAX_S = 1.0  # for one answer of another node
RECALL_MAX_S = 0.5  # for one that seems to be there
GATHER_MAX_S = 2.0  # at a start, until the others are known
KNOWN_MAX = 256  # nodes
NODES_MAX = 64  # in one message
_LOSSES = (ChangeKind.SUSPECT, ChangeKind.LEFT, ChangeKind.FORGOTTEN)


class Absences:
    """One per node. `join` before `run`."""

    def __init__(self, me: str, node: StoreNode, bus: Bus, subjects: Subjects, clock: Clock):
        self.me = me
        self.notes = node.core.residents.notes
        self._node = node
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._members: Members | None = None
        self._known: dict[str, None] = {}  # nodes ever heard, the latest last
        self._alive: set[str] = set()  # were heard here, though the registry may not know it yet
        self._owing: set[str] = set()  # did not say what they have for us
        self._is_new = False
        node.presence.is_alone = lambda: not self._known and not self._is_new

    def join(self, members: Members) -> None:
        self._members = members

    def begin_anew(self) -> None:
        """This life starts with what an earlier one had: others are asked first."""
        self._is_new = True
        self._node.presence.leave()

    def changed(self, change: Change) -> None:
        """A member came or went."""
        id = change.member.id
        if change.member.role != "store" or id == self.me:
            return
        if change.kind in _LOSSES:
            self._alive.discard(id)
            self.notes.miss(id)
        self._known.pop(id, None)
        self._known[id] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    # --- verbs ---

    async def remove(self, request: RemoveRequest) -> RemoveReply:
        """The node's own, noted for who is away."""
        reply = await self._node.remove(request)
        if self.notes.absent and not request.reason and not request.generations:
            self.notes.changed(request.tenant, keys_of(request.keys), self._node.now())
            await self._recall_all(list(self.notes.absent))
        return reply

    async def wipe(self, request: WipeRequest) -> WipeReply:
        """As `remove`."""
        began_s = self._node.now()
        reply = await self._node.wipe(request)
        self.notes.cleared(request.tenant, began_s)
        await self._recall_all(list(self.notes.absent))
        return reply

    async def absent(self, request: AbsentRequest) -> AbsentReply:
        """Raises BadRequest."""
        check_id(request.tenant, "tenant")
        keys = keys_of(request.keys)
        check_extent(request.age_s, max(len(keys), len(request.nodes)), 1 << 16)
        nodes = [node for node in request.nodes[:NODES_MAX] if node != self.me]
        at_s = self._node.now() - request.age_s
        if keys:
            self.notes.changed(request.tenant, keys, at_s, nodes)
        if request.all or request.prefix is not None:
            prefix = None if request.all else request.prefix
            self.notes.cleared(request.tenant, at_s, prefix, nodes)
        await self._recall_all(nodes)
        return AbsentReply(len(nodes))

    async def tell(self, request: NotesRequest) -> NotesReply:
        """Whoever asks is there."""
        check_id(request.node, "node")
        if request.node in self.notes.absent:
            self._alive.add(request.node)
        page = self.notes.page(request.node, request.after, self._node.now())
        absent = [n for n in self.notes.absent if n != request.node] if request.is_new else []
        return NotesReply(page.notes, page.until, absent)

    async def recall(self, request: RecallRequest) -> RecallReply:
        check_id(request.node, "node")
        return RecallReply(await self._hear(request.node))

    def stats(self) -> dict[str, int]:
        return {**self.notes.stats(), "absences": self._node.presence.epoch}

    # --- time ---

    async def run(self) -> NoReturn:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask_when_away(), name="store: what was missed")
            while True:
                await self._clock.sleep(LOOK_S)
                self._node.presence.look(self._node.now(), is_connected=self._bus.is_connected)
                await self._remind()
        raise AssertionError("unreachable")

    async def _ask_when_away(self) -> NoReturn:
        presence = self._node.presence
        while True:
            await presence.wanted.wait()
            presence.wanted.clear()
            epoch = presence.epoch
            if self._is_new and self._members is not None:
                await self._members.gather("store", GATHER_MAX_S)
            await asyncio.gather(*(self._hear(node) for node in list(self._known)))
            self._is_new = False
            presence.back(epoch)

    async def _remind(self) -> None:
        """Who is back hears what it missed; who owes us an answer is asked again."""
        for node in [node for node in self.notes.absent if self._is_heard(node)]:
            if self.notes.has(node):
                await self._recall(node)
            else:
                self._alive.discard(node)
                self.notes.forget(node)
        for node in [node for node in self._owing if self._is_heard(node)]:
            await self._hear(node)

    def _is_heard(self, node: str) -> bool:
        member = self._members.get(node) if self._members is not None else None
        return node in self._alive or (member is not None and not member.is_suspect)

    async def _recall_all(self, nodes: Iterable[str]) -> None:
        """Those that are back, or were never away, know before anybody is told of the change."""
        await asyncio.gather(*(self._recall(node) for node in nodes if self._is_heard(node)))

    async def _recall(self, node: str) -> None:
        """It comes and asks, if it is really there."""
        try:
            await self._ask(node, "recall", RecallRequest(self.me), RecallReply, RECALL_MAX_S)
        except MoonpoolError as error:
            self._alive.discard(node)
            if self._members is not None and isinstance(error, NoResponder | RequestTimeout):
                self._members.doubt(node)

    async def _hear(self, node: str) -> int:
        """Heeds what that node has noted for us; how many objects went."""
        dropped = after = 0
        self._owing.discard(node)
        try:
            while True:
                asked_s = self._node.now()
                request = NotesRequest(self.me, after, self._is_new)
                reply = await self._ask(node, "notes", request, NotesReply, ASK_MAX_S)
                for each in reply.absent:
                    if each != self.me:
                        self.notes.miss(each)
                if not reply.notes:
                    return dropped
                dropped += await self._heed(reply.notes, asked_s)
                after = reply.until
        except NoResponder:
            return dropped  # what it knew went with it
        except MoonpoolError:
            self._owing.add(node)
            return dropped

    async def _heed(self, notes: Iterable[Note], asked_s: float) -> int:
        """Drops what is void, in all tiers, whoever reads it. Ours that is newer stays."""
        dropped = 0
        keys: dict[TenantId, list[BlockKey]] = defaultdict(list)
        for note in notes:
            since_s = asked_s - note.age_s
            if self._is_new:  # of a prefix, names that are not back yet cannot be told apart
                wide = "all" if note.kind == "all" else "named"
                self.notes.void(note.tenant, BlockKey(note.key) if note.kind == "key" else wide)
            if note.kind == "key":
                if not self.notes.is_newer(BlockKey(note.key), since_s):
                    keys[note.tenant].append(BlockKey(note.key))
            elif note.kind == "prefix":
                dropped += await drop_prefix(self._node, note.tenant, note.prefix, since_s)
            else:
                is_all = note.kind == "all"
                dropped += await drop_names(self._node, note.tenant, since_s, everything=is_all)
        dropped += sum(drop_named(self._node, tenant, some) for tenant, some in keys.items())
        self._node.core.counters["voided"] += dropped
        await self._node.mover.wait_erased(ERASED_MAX_S)  # or a crash would bring them back
        return dropped

    async def _ask(
        self, node: str, verb: str, request: msgspec.Struct, kind: type[R], timeout_s: float
    ) -> R:
        subject = self._subjects.store(node, verb)
        return decode(await self._bus.request(subject, encode(request), timeout_s), kind)
