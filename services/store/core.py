"""The node's core: what is stored, who reads it, who goes. No I/O, no clock; time is handed in.

Every verb is one call that either does all it says or raises before it changed anything. The
memory itself belongs to peers (they write and read) and to the shell (it compares checksums,
between `begin_commit` and `finish_commit`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.cache import NO_HINT, BlockHint, EvictionPolicy
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.store import GetSlot, PutEndItem, PutItem, PutSlot, StatsReply
from services.store.asking import check_extent, check_item, check_replicas
from services.store.copies import Copies
from services.store.errors import BadRequest, NodeDraining
from services.store.inspections import Inspections
from services.store.ladder import Ladder
from services.store.leases import Leases
from services.store.limits import Limits
from services.store.lookup import Lookup
from services.store.objects import State, StoredObject
from services.store.pins import PIN_KINDS, Pins
from services.store.puts import Puts
from services.store.reads import Reads
from services.store.reborn import Reborn
from services.store.residents import TRIM_MAX, Residents
from services.store.shelf import Shelf
from services.store.takeover import Takeover
from services.store.tally import TenantTally
from services.store.tenants import Quotas
from services.store.tiers import Tier


@dataclass(frozen=True, slots=True)
class Commit:
    """A put_end half done: the shell compares `doubtful` with the sums and calls finish_commit."""

    results: list[str]  # per item; "" where `doubtful` decides
    doubtful: list[tuple[int, StoredObject, bytes]]  # (item, object, checksums it should have)
    takes: dict[int, bytes]  # item -> key that it takes over


class StoreCore:
    """One node. One thread."""

    def __init__(
        self,
        tier: Tier,
        policy: EvictionPolicy[BlockKey],
        limits: Limits,
        shelves: Sequence[Shelf] = (),
    ) -> None:
        self.residents = Residents(tier, policy, limits.headroom)
        self.ladder = Ladder(self.residents, shelves, limits)
        self.limits = limits
        self.draining = False
        self.counters: Counter[str] = Counter()
        self.quotas = Quotas()
        self.pins = Pins(self.residents, self.ladder, self.quotas, limits)
        self.copies = Copies(self.residents, self.ladder, self.pins)
        self._lookup = Lookup(self.residents, self.ladder)
        self._puts = Puts(limits.puts_max)
        self._leases = Leases(limits.leases_max)
        self._takeover = Takeover(self.residents, self.ladder)
        self._inspections = Inspections(self.residents, self._lookup, self._leases, self.counters)
        self._reads = Reads(self.residents, self.ladder, self._lookup, self._leases, self.counters)
        self.tally = TenantTally(self.residents, self.ladder, self.quotas)
        self._verifying: set[StoredObject] = set()
        self.reborn = Reborn(self.residents, self._verifying, self.counters)
        # Puts that ran out; their places are not reused while a late writer might still write.
        self._limbo: dict[int, list[StoredObject]] = {}
        self._unconfirmed: list[int] = []  # keys of _limbo not yet told to the shell

    # --- puts ---

    def put_start(
        self,
        tenant: TenantId,
        items: Sequence[PutItem],
        ttl_s: float,
        now_s: float,
        *,
        hint: BlockHint = NO_HINT,
        replicas: int = 1,
    ) -> tuple[int, list[PutSlot]]:
        """(put id, a slot per item); the id is 0 when nothing is to be written.

        Raises NodeDraining, ObjectTooLarge, BadRequest, TooManySessions.
        """
        if self.draining:
            raise NodeDraining
        for item in items:
            check_item(item, self.residents.tier.bytes_total)
        check_extent(ttl_s, len(items), self.limits.keys_max)
        check_replicas(replicas)
        self._puts.require_room()
        self.tick(now_s)
        self._reads.touch([BlockKey(item.key) for item in items], now_s, hint)  # those that exist
        opened: list[StoredObject] = []
        slots = [self._open_slot(tenant, item, opened, hint, now_s) for item in items]
        for obj in opened:
            obj.replicas = replicas
        if not opened:
            return 0, slots
        put = self._puts.open(opened, now_s + min(ttl_s, self.limits.put_ttl_max_s))
        self.residents.trim(now_s, 2 * sum(map(self.residents.footprint, opened)))
        return put, slots

    def begin_commit(self, put: int, items: Sequence[PutEndItem], now_s: float) -> Commit:
        """First half of put_end. Items named in `doubtful` stay where they are until
        `finish_commit`, however long the shell takes. Raises BadRequest."""
        check_extent(0.0, len(items), self.limits.keys_max)
        self.tick(now_s)
        commit = Commit([], [], {i: item.takes for i, item in enumerate(items) if item.takes})
        for index, item in enumerate(items):
            obj = self._puts.take(put, BlockKey(item.key), item.generation)
            if obj is None:
                commit.results.append("expired")
            elif not item.checksums:
                self.residents.drop(obj)
                commit.results.append("abandoned")
            else:
                obj.state = State.VERIFYING
                self._verifying.add(obj)
                commit.doubtful.append((index, obj, item.checksums))
                commit.results.append("")
        return commit

    def finish_commit(self, commit: Commit, sound: Sequence[bool], now_s: float) -> list[str]:
        """Second half: `sound[i]` says whether `commit.doubtful[i]` has its checksums."""
        results = list(commit.results)
        # Last first: of what came together, the head of a prefix must outlive its tail.
        for (index, obj, checksums), is_sound in reversed(
            list(zip(commit.doubtful, sound, strict=True))
        ):
            self._verifying.remove(obj)
            if is_sound and len(checksums) == obj.checksums_bytes:
                takes = commit.takes.get(index, b"")
                results[index] = self._takeover.commit(obj, takes, checksums, now_s)
                self.copies.want([obj.key], obj.replicas)
            else:
                self.residents.drop(obj)
                results[index] = "corrupt"
        for result in results:
            self.counters[f"puts_{result}"] += 1
        return results

    # --- gets ---

    def get_start(
        self,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        lease_s: float,
        now_s: float,
        hint: BlockHint = NO_HINT,
    ) -> tuple[int, list[GetSlot]]:
        """(lease id, a slot per key); the id is 0 when nothing hit. `lease_s` 0 only looks: no
        lease, and not counted as a use. Raises BadRequest, TooManySessions."""
        check_extent(lease_s, len(keys), self.limits.keys_max)
        if lease_s:
            self._leases.require_room()
        self.tick(now_s)
        lease_s = min(lease_s, self.limits.lease_max_s)
        return self._reads.start(keys, lease_s, now_s, hint)

    def promote(self, keys: Sequence[BlockKey], now_s: float, hint: BlockHint = NO_HINT) -> int:
        """Starts what lies below on its way up, ahead of whoever will read it, and lets others go
        before what is up; how many are on their way now. Not a use. Raises BadRequest."""
        check_extent(0.0, len(keys), self.limits.keys_max)
        self.tick(now_s)
        return self._reads.ahead(keys, now_s, hint)

    def get_more(
        self,
        lease: int,
        keys: Sequence[BlockKey],
        slots: list[GetSlot],
        lease_s: float,
        now_s: float,
        hint: BlockHint = NO_HINT,
    ) -> int:
        """Looks again at what was loading: `slots` gets what is here now, and the lease holds it.
        Its id, new when `lease` is 0. Nothing when it ran out. Raises TooManySessions."""
        self.tick(now_s)
        lease_s = min(lease_s, self.limits.lease_max_s)
        return self._reads.more(lease, keys, slots, lease_s, now_s, hint)

    def get_end(self, lease_id: int, now_s: float) -> bool:
        """True when the lease lasted until now: what was read under it is what was stored."""
        self.tick(now_s)
        return self._reads.end(lease_id, now_s)

    def hold(self, keys: Sequence[BlockKey], now_s: float) -> tuple[int, list[StoredObject | None]]:
        """A lease for ourselves, on what is live in dram; (its id, object or None per key). Not a
        use. Raises TooManySessions."""
        return self._inspections.begin(keys, now_s)

    def release(self, lease_id: int, now_s: float) -> None:
        """Ends what `hold` gave; 0 is nothing."""
        if lease_id and (lease := self._leases.close(lease_id)) is not None:
            self._reads.let_go(lease, now_s)

    def tenant_of(self, key: BlockKey) -> TenantId:
        """Who put what lies here under this key; "" when nothing does."""
        obj, found = self.residents.objects.get(key), self.ladder.find(key)
        return obj.tenant if obj else found[1].tenant if found else TenantId("")

    # --- removing and pinning ---

    def remove(self, tenant: TenantId, keys: Sequence[BlockKey], now_s: float) -> list[str]:
        """Per key "removed", "leased" (goes with its last reader), "pinned" (hard) or "miss";
        what another tenant put is a miss."""
        check_extent(0.0, len(keys), self.limits.keys_max)
        self.tick(now_s)
        return [self._remove(tenant, key) for key in keys]

    def begin_inspection(
        self, keys: Sequence[BlockKey], now_s: float
    ) -> tuple[int, list[StoredObject | None]]:
        """Holds objects that a reader calls corrupt, so that the shell can look for itself.
        (lease id, object or None per key). Not a use. Raises BadRequest, TooManySessions."""
        check_extent(0.0, len(keys), self.limits.keys_max)
        self.tick(now_s)
        return self._inspections.begin(keys, now_s)

    def finish_inspection(
        self,
        lease_id: int,
        found: Sequence[StoredObject | None],
        sound: Sequence[bool],
        now_s: float,
    ) -> list[str]:
        """Per key "removed" (it was corrupt, pinned or not), "intact" or "miss"."""
        results = self._inspections.finish(found, sound)
        self.release(lease_id, now_s)
        return results

    def pin(
        self,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        kind: str,
        ttl_s: float,
        now_s: float,
        replicas: int = 1,
    ) -> list[str]:
        """Per key "pinned", "unpinned", "over_quota", or "miss", which is also what another tenant
        put. Raises BadRequest."""
        if kind not in PIN_KINDS:
            raise BadRequest(f"a pin is one of {', '.join(PIN_KINDS)}, not {kind!r}")
        check_extent(ttl_s, len(keys), self.limits.keys_max)
        check_replicas(replicas)
        self.tick(now_s)
        results = [self.pins.pin(tenant, key, kind, ttl_s, replicas, now_s) for key in keys]
        self.copies.want([k for k, r in zip(keys, results, strict=True) if r == "pinned"], replicas)
        return results

    # --- durability ---

    def secure(self, keys: Sequence[BlockKey], now_s: float) -> list[BlockKey]:
        """Begins to copy objects below that are only in dram; which of them are not there yet."""
        for obj in filter(None, map(self._lookup.live, keys)):
            self.ladder.secure(obj, now_s)
        return [key for key in keys if not self.ladder.is_below(key)]

    # --- time, and what the shell asks ---

    def tick(self, now_s: float) -> None:
        """What time does: reclaims puts, ends leases and soft pins. Every verb begins with it."""
        for session in self._puts.pop_due(now_s):
            self._limbo[session.id] = list(session.waiting.values())
            self._unconfirmed.append(session.id)
            for obj in self._limbo[session.id]:
                obj.leases += 1  # the writer's hold, until `free_expired`
                self.residents.drop(obj)
                self.counters["puts_reclaimed"] += 1
        for lease in self._leases.pop_due(now_s):
            self._reads.let_go(lease, now_s)
            self.counters["leases_expired"] += 1
        self.pins.expire(now_s)

    def trim(self, now_s: float) -> None:
        """Restores headroom, a 64th of the tier at a time. For quiet moments."""
        residents = self.residents
        residents.trim(now_s, residents.tier.bytes_total // 64, victims_max=TRIM_MAX)
        self.ladder.trim(now_s)
        self.tally.trim()

    def take_ended_puts(self) -> tuple[list[int], list[int]]:
        """(ended in time, ran out) since the last call. The shell withdraws the writers' rights;
        for those that ran out it then calls `free_expired`."""
        expired, self._unconfirmed = self._unconfirmed, []
        return self._puts.take_ended(), expired

    def free_expired(self, put: int, now_s: float) -> None:
        """Nobody can write for `put` any more: its places are free. KeyError when unknown."""
        for obj in self._limbo.pop(put):
            self.residents.let_go(obj, now_s)

    def drain(self) -> None:
        """From now on no new objects; readers go on."""
        self.draining = True

    def take_changes(self) -> tuple[list[BlockKey], list[BlockKey]]:
        """(stored, removed) since the last call, for the index elsewhere."""
        return self.residents.changes.take()

    def live_keys(self) -> list[BlockKey]:
        return [key for key, obj in self.residents.objects.items() if obj.state is State.LIVE]

    def stats(self) -> StatsReply:
        """For operators and tests. `late_puts` are places still kept for writers out of time."""
        residents = self.residents
        tiers = [residents.tier.stats(residents.live, residents.evictions)]
        tiers += [shelf.stats() for shelf in self.ladder.shelves]
        late = sum(map(len, self._limbo.values()))
        counters = {**self.counters, **self.ladder.stats(), "late_puts": late}
        counters["doomed"] = len(residents.doomed)
        counters |= {**self.pins.stats(), **self.copies.stats()}
        tenants = self.tally.stats(self.pins)
        return StatsReply(tiers, len(self._leases), len(self._puts), counters, tenants)

    @property
    def puts_open(self) -> int:
        return len(self._puts)

    @property
    def leases_open(self) -> int:
        return len(self._leases)

    def check(self) -> None:
        """Asserts every invariant. Linear in objects."""
        self.residents.check()
        self.ladder.check()
        self.pins.check()
        self._puts.check()
        self._leases.check()
        writing = {obj for obj in self.residents.objects.values() if obj.state is State.WRITING}
        assert writing == set(self._puts.waiting())
        verifying = {o for o in self.residents.objects.values() if o.state is State.VERIFYING}
        assert verifying == self._verifying
        limbo = [obj for objects in self._limbo.values() for obj in objects]
        holds = Counter(map(id, [*self._leases.held(), *limbo, *self.ladder.holds()]))
        everything = [*self.residents.objects.values(), *self.residents.doomed]
        assert {id(obj): obj.leases for obj in everything if obj.leases} == dict(holds)
        generations = [obj.generation for obj in everything]
        assert len(set(generations)) == len(generations)
        assert all(0 < each <= self.residents.last_generation for each in generations)

    # --- inside ---

    def _open_slot(
        self,
        tenant: TenantId,
        item: PutItem,
        opened: list[StoredObject],
        hint: BlockHint,
        now_s: float,
    ) -> PutSlot:
        key = BlockKey(item.key)
        there = self.residents.objects.get(key)
        if there is not None:
            return PutSlot("exists" if there.state is State.LIVE else "busy")
        if self.ladder.find(key) is not None:
            return PutSlot("exists")
        evict = self.quotas.evicts(tenant)
        if not self.residents.fits_quota(tenant, item.size_bytes, evict=evict):
            self.counters["puts_over_quota"] += 1
            return PutSlot("over_quota")
        place = self.residents.reserve(item.size_bytes, now_s)
        if place is None:
            self.counters["puts_no_space"] += 1
            return PutSlot("no_space")
        generation = self.residents.next_generation()
        obj = StoredObject(
            key, tenant, item.size_bytes, item.chunk_bytes, place, generation, hint=hint
        )
        self.residents.add(obj)
        opened.append(obj)
        return PutSlot("ok", place, obj.generation)

    def _remove(self, tenant: TenantId, key: BlockKey) -> str:
        obj = self.residents.objects.get(key)
        was_below = self.ladder.find(key) is not None
        if (obj is not None or was_below) and self.pins.is_hard(key, tenant):
            return "pinned"
        was_below = self.ladder.remove(tenant, key)
        if obj is None or obj.tenant != tenant or obj.state not in (State.LIVE, State.LOADING):
            self.counters["removes"] += was_below
            return "removed" if was_below else "miss"
        is_read = obj.leases > 0 and obj.state is State.LIVE
        self.residents.drop(obj)
        self.counters["removes"] += 1
        return "leased" if is_read else "removed"
