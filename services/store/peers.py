"""Other nodes, as this one deals with them: who has which blocks, and copies sent there."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.bus import Bus, NoResponder
from moonpool.client.placement import rank_nodes
from moonpool.clock import Clock
from moonpool.kv import BlockKey, pack_keys
from moonpool.messages import MoonpoolError, Subjects, TenantId
from moonpool.messages.codec import decode, encode
from moonpool.messages.store import (
    GetStartReply,
    GetStartRequest,
    PutEndItem,
    PutEndReply,
    PutEndRequest,
    PutItem,
    PutStartReply,
    PutStartRequest,
)
from moonpool.runtime import Members
from moonpool.transfer import LocalRegion, TransferEngine
from moonpool.transfer.base import Op, Priority, TransferRequest
from services.store.core import StoreCore
from services.store.objects import StoredObject

ASK_MAX_S = 2.0
SEND_MAX_S = 15.0
KEYS_MAX = 256  # per message
BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Holders:
    """What other nodes said."""

    by_key: dict[BlockKey, set[str]]
    silent: set[str]  # did not answer, but may come back
    taking: set[str]  # answered, and take new blocks


class Peers:
    """One per node. `me` is its id."""

    def __init__(
        self,
        me: str,
        bus: Bus,
        subjects: Subjects,
        members: Members,
        transfer: TransferEngine,
        region: LocalRegion,
        core: StoreCore,
        clock: Clock,
    ) -> None:
        self.me = me
        self._bus = bus
        self._subjects = subjects
        self._members = members
        self._transfer = transfer
        self._region = region
        self._core = core
        self._clock = clock
        self.counters: Counter[str] = Counter()

    def taking(self) -> list[str]:
        """Nodes that take new blocks now, but for this one."""
        return [m.id for m in self._members.usable("store") if m.id != self.me]

    def is_first(self, key: BlockKey) -> bool:
        """Whether, of the nodes that live, this one is the first in the key's order."""
        return rank_nodes(key, [self.me, *self.taking()])[0] == self.me

    async def holders(self, tenant: TenantId, keys: Sequence[BlockKey]) -> Holders:
        """Asks all nodes that may be there. One that is leaving holds nothing any more."""
        known = [member for member in self._members.of("store") if member.id != self.me]
        asked = [member for member in known if member.state != "draining"]
        answers = await asyncio.gather(*(self._ask(m.id, tenant, keys) for m in asked))
        found = Holders({key: set() for key in keys}, set(), set())
        for member, answer in zip(asked, answers, strict=True):
            if answer is None:
                continue
            if isinstance(answer, MoonpoolError):
                found.silent.add(member.id)
                continue
            if member.state == "ready":
                found.taking.add(member.id)
            for key, slot in zip(keys, answer.slots, strict=True):
                if slot.status != "miss":
                    found.by_key[key].add(member.id)
        return found

    async def send(
        self, node: str, tenant: TenantId, keys: Sequence[BlockKey], replicas: int
    ) -> dict[BlockKey, str]:
        """Copies what is in dram to `node`. Per key what became of it, as the slot or the commit
        says it ("committed", "exists", ..), "failed", or "miss": not in dram."""
        outcome: dict[BlockKey, str] = {}
        for part in self._parts(keys):
            lease, objects = self._core.hold(part, self._clock.now())
            try:
                here = [obj for obj in objects if obj is not None and obj.tenant == tenant]
                outcome |= dict.fromkeys(part, "miss")
                if here:
                    outcome |= await self._send(node, tenant, here, replicas)
            except MoonpoolError:
                outcome |= dict.fromkeys((obj.key for obj in here), "failed")
            finally:
                self._core.release(lease, self._clock.now())
        for said in outcome.values():
            self.counters[f"sent_{said}"] += 1
        return outcome

    def stats(self) -> dict[str, int]:
        return dict(self.counters)

    def _parts(self, keys: Sequence[BlockKey]) -> list[list[BlockKey]]:
        parts: list[list[BlockKey]] = []
        room_bytes = 0
        for key in keys:
            obj = self._core.residents.objects.get(key)
            size_bytes = obj.size_bytes if obj else 0
            if not parts or size_bytes > room_bytes or len(parts[-1]) == KEYS_MAX:
                parts.append([])
                room_bytes = BATCH_BYTES
            parts[-1].append(key)
            room_bytes -= size_bytes
        return parts

    async def _ask(
        self, node: str, tenant: TenantId, keys: Sequence[BlockKey]
    ) -> GetStartReply | MoonpoolError | None:
        """Its answer; None: it is gone."""
        request = encode(GetStartRequest(tenant, pack_keys(keys), lease_s=0.0))
        subject = self._subjects.store(node, "get_start")
        try:
            return decode(await self._bus.request(subject, request, ASK_MAX_S), GetStartReply)
        except NoResponder:
            self._members.doubt(node)
            return None
        except MoonpoolError as error:
            return error

    async def _send(
        self, node: str, tenant: TenantId, objects: list[StoredObject], replicas: int
    ) -> dict[BlockKey, str]:
        items = [PutItem(obj.key, obj.size_bytes, obj.chunk_bytes) for obj in objects]
        request = PutStartRequest(tenant, items, ttl_s=SEND_MAX_S, replicas=replicas)
        subject = self._subjects.store(node, "put_start")
        reply = decode(await self._bus.request(subject, encode(request), ASK_MAX_S), PutStartReply)
        outcome = {obj.key: slot.status for obj, slot in zip(objects, reply.slots, strict=True)}
        wanted = [
            (obj, slot)
            for obj, slot in zip(objects, reply.slots, strict=True)
            if slot.status == "ok"
        ]
        if not wanted or reply.grant is None:
            return outcome
        remote = self._transfer.open(reply.grant)
        requests = [
            TransferRequest(Op.WRITE, self._region, o.place, remote, s.offset, o.size_bytes)
            for o, s in wanted
        ]
        await self._transfer.submit(requests, priority=Priority.BACKGROUND, deadline_s=SEND_MAX_S)
        ends = [PutEndItem(obj.key, slot.generation, obj.checksums) for obj, slot in wanted]
        subject = self._subjects.store(node, "put_end")
        payload = encode(PutEndRequest(reply.put, ends))
        done = decode(await self._bus.request(subject, payload, SEND_MAX_S), PutEndReply)
        return outcome | {
            obj.key: said for (obj, _), said in zip(wanted, done.results, strict=True)
        }
