"""The tiers below dram and what moves between them: dram -> nvme -> oss -> gone, and back. Pure.

It orders moves, the shell makes them and says how they ended. Copies go down only when room is
needed above, and only what was used before; what was read comes back to dram, and its copy below
stays, so that it can be evicted again for nothing.
"""

from collections import Counter
from collections.abc import Sequence

from moonpool.cache import NO_HINT, BlockHint, make_admission
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.below import Verdict
from services.store.limits import Limits
from services.store.moves import Demotion, Descent, Erasure, Move, Outcome, Promotion
from services.store.objects import State, StoredObject
from services.store.records import Record, Stage
from services.store.residents import Residents
from services.store.shelf import Shelf
from services.store.tiers.record import record_bytes
from services.store.tiers.vault import Item
from services.store.way import Ways

LOADING_MAX = 1024  # promotions at a time
DESCENDING_MAX = 1024
TRIM_MAX = 64  # victims per shelf and call
FLIGHT_MIN_BYTES = 16 << 20  # on the way down at a time, or a 16th of dram


class Ladder:
    """A `Below`. One thread."""

    def __init__(self, residents: Residents, shelves: Sequence[Shelf], limits: Limits) -> None:
        """ValueError on an admission that there is none of."""
        self.shelves = list(shelves)  # nearest first
        self.counters: Counter[str] = Counter()
        self.loading: dict[BlockKey, Promotion] = {}
        self.descending: set[Demotion | Descent] = set()
        self._residents = residents
        self._uses = make_admission(limits.demote_by, limits.demote_after_uses)
        self._used_s = 0.0  # when the last use was
        self._ways = Ways(shelves)
        self._moves: list[Move] = []
        self._loading_bytes = 0
        self._descending_bytes = 0
        dram_bytes = residents.tier.bytes_total
        self._loading_max_bytes = dram_bytes // 2
        self._flight_max_bytes = max(FLIGHT_MIN_BYTES, dram_bytes // 16)
        if shelves:
            residents.below = self

    # --- looking ---

    def find(self, key: BlockKey) -> tuple[Shelf, Record] | None:
        """The nearest place that can be read now."""
        for shelf in self.shelves:
            record = shelf.find(key)
            if record is not None:
                return shelf, record
        return None

    def used(self, keys: Sequence[BlockKey], now_s: float) -> None:
        """A use of a run, head first; a put is one too."""
        for key in keys:
            self._uses.used(key, now_s)
        self._used_s = now_s
        for shelf in self.shelves:
            shelf.touch(keys, now_s)

    # --- up ---

    def promote(self, key: BlockKey, now_s: float, hint: BlockHint = NO_HINT) -> None:
        """Begins to load it, if there is room for that now; asking again does no harm."""
        found = self.find(key)
        if found is None or key in self._residents.objects or len(self.loading) >= LOADING_MAX:
            return
        shelf, record = found
        facts = record.item.facts
        if self.loading and self._loading_bytes + facts.size_bytes > self._loading_max_bytes:
            return
        if not self._residents.fits_quota(facts.tenant, facts.size_bytes, evict=True):
            self.counters["promotions_over_quota"] += 1
            return
        place = self._residents.reserve(facts.size_bytes, now_s, spare=True)
        if place is None:
            self.counters["promotions_no_space"] += 1
            return
        obj = StoredObject(
            key,
            facts.tenant,
            facts.size_bytes,
            facts.chunk_bytes,
            place,
            self._residents.next_generation(),
            State.LOADING,
            leases=1,
            hint=hint,
        )
        self._residents.add(obj)
        shelf.begin_move(record)
        self.loading[key] = move = Promotion(shelf, record, obj)
        self._loading_bytes += facts.size_bytes
        self._moves.append(move)

    def end_promotion(
        self, move: Promotion, outcome: Outcome, checksums: bytes, now_s: float
    ) -> None:
        """The shell has filled the object's place, or not."""
        obj, residents = move.obj, self._residents
        del self.loading[obj.key]
        self._loading_bytes -= obj.size_bytes
        self.counters[f"promotions_{outcome}"] += 1
        if outcome is Outcome.LOST:
            self._forget(move.shelf, move.record)
        move.shelf.end_move(move.record)
        if obj.state is State.DOOMED:
            residents.let_go(obj, now_s)
            return
        obj.leases = 0
        if outcome is Outcome.DONE:
            residents.commit(obj, checksums, now_s)
        else:
            residents.drop(obj)

    def load(
        self, shelf: Shelf, items: Sequence[Item], now_s: float, *, is_refresh: bool = False
    ) -> None:
        """What lies on a shelf since before this start, as the shell finds it; or, in a refresh,
        what other nodes have put there since."""
        shelf.load(items, self._residents.objects, now_s, is_refresh=is_refresh)

    # --- down ---

    def take_over(self, obj: StoredObject, now_s: float) -> Verdict:
        if self.find(obj.key) is not None or not self._uses.admits(obj.key, now_s):
            return Verdict.NO
        takers = self._takers(self.shelves, obj.key, obj.size_bytes, obj.chunk_bytes)
        if takers and self._is_flight_full(obj.size_bytes):
            return Verdict.LATER
        arrival = self._arrive(takers, obj.key, obj.tenant, obj.size_bytes, obj.chunk_bytes, now_s)
        if arrival is None:
            return Verdict.LATER if self._ways.are_for([obj.key]) else Verdict.NO
        self._residents.begin_leaving(obj)
        self._begin_descent(Demotion(obj, *arrival))
        return Verdict.BEGUN

    def is_below(self, key: BlockKey) -> bool:
        """It can be read below, now or after a crash."""
        return self.find(key) is not None

    def below_of(self, key: BlockKey) -> str:
        """The tier below dram where it can be read; "" for none."""
        found = self.find(key)
        return found[0].name if found else ""

    def secure(self, obj: StoredObject, now_s: float) -> bool:
        """Begins to copy a LIVE object below, however seldom it was used; it stays in dram. True
        when it is there or on its way; asking again does no harm."""
        if self.is_below(obj.key) or self._is_arriving(obj.key):
            return True
        takers = self._takers(self.shelves, obj.key, obj.size_bytes, obj.chunk_bytes)
        arrival = self._arrive(takers, obj.key, obj.tenant, obj.size_bytes, obj.chunk_bytes, now_s)
        if arrival is None:
            return False
        self._residents.hold(obj)
        self._begin_descent(Demotion(obj, *arrival, stays=True))
        return True

    def is_making_room(self, keys: Sequence[BlockKey] = ()) -> bool:
        """Whether room below is being made: for one of these, or for any when none are given."""
        return self._ways.are_for(keys) if keys else bool(self._ways)

    def is_worth_keeping(self, key: BlockKey) -> bool:
        """It is worth a lower tier, or another node when this one leaves."""
        return self._uses.admits(key, self._used_s)

    def make_room(self, sizes: Sequence[int], now_s: float) -> bool:
        """Sends down what must leave for new objects of these sizes. False when it is worth
        waiting until something has arrived there: without that, room is made by forgetting."""
        residents = self._residents
        if not self.shelves or not sizes or residents.has_room(sizes):
            return True
        # Free bytes in the wrong places are no room: at least one more must leave.
        more_bytes = max(sum(sizes), residents.free_bytes + max(sizes))
        free_bytes = min(more_bytes, residents.tier.bytes_total)
        residents.trim(now_s, 2 * sum(sizes), free_bytes=free_bytes)
        is_busy = bool(self.descending) or self.is_making_room()
        return residents.has_room(sizes) or not is_busy

    def end_demotion(self, move: Demotion, outcome: Outcome, now_s: float) -> None:
        self._end_descent(move)
        self.counters[f"demotions_{outcome}"] += 1
        move.shelf.end_arrival(move.record, outcome is Outcome.DONE, now_s)
        if outcome is Outcome.LOST and move.obj.state is State.LIVE:
            self._residents.drop(move.obj)
        if move.stays:
            self._residents.let_go(move.obj, now_s)
        else:
            self._residents.end_leaving(move.obj, now_s)

    def end_descent(self, move: Descent, outcome: Outcome, now_s: float) -> None:
        self._end_descent(move)
        self.counters[f"demotions_{outcome}"] += 1
        move.shelf.end_arrival(move.record, outcome is Outcome.DONE, now_s)
        if outcome is Outcome.LOST:
            self._forget(move.source, move.source_record)
        move.source.end_leaving(move.source_record)

    def end_erasure(self, move: Erasure, outcome: Outcome) -> None:
        move.shelf.end_erasure(move.record, outcome is Outcome.DONE)

    def trim(self, now_s: float) -> None:
        """Restores each shelf's headroom, a little at a time. For quiet moments."""
        self._ways.tick(now_s)
        for index, shelf in enumerate(self.shelves):
            for _ in range(TRIM_MAX):
                if not shelf.online or shelf.excess_bytes() <= 0:
                    break
                victim = shelf.next_victim(now_s)
                if victim is None or not self._send_down(shelf, victim, index + 1, now_s):
                    break

    # --- removing, and what the shell asks ---

    def remove(self, tenant: TenantId, key: BlockKey) -> bool:
        """Takes every copy below away; only a tenant's own."""
        removed = False
        for shelf in self.shelves:
            shelf.bar(key)
            record = shelf.records.get(key)
            if record is not None and record.tenant == tenant:
                shelf.drop(record)
                removed = True
        return removed

    def supersede(self, key: BlockKey) -> None:
        """It was put anew, while a tier that may hold it was away: the older copy is not to be
        believed when the tier is back."""
        for shelf in self.shelves:
            shelf.bar(key)
            record = shelf.records.get(key)
            if record is not None:
                shelf.drop(record)

    def take_moves(self) -> list[Move]:
        """What the shell is to do next; it ends each with the matching `end_*`."""
        moves, self._moves = self._moves, []
        for shelf in self.shelves:
            moves += [Erasure(shelf, record) for record in shelf.take_erasures()]
        return moves

    def holds(self) -> list[StoredObject]:
        """Objects that moves hold, once per hold."""
        demoted = [move.obj for move in self.descending if isinstance(move, Demotion)]
        return [*demoted, *(move.obj for move in self.loading.values())]

    def stats(self) -> dict[str, int]:
        under_way = {"loading": len(self.loading), "demoting": len(self.descending)}
        return {**self.counters, **under_way}

    def check(self) -> None:
        """Asserts that moves, shelves and residents agree."""
        for shelf in self.shelves:
            shelf.check()
        self._ways.check()
        loading = {o for o in self._residents.objects.values() if o.state is State.LOADING}
        doomed = {m.obj for m in self.loading.values() if m.obj.state is State.DOOMED}
        assert loading | doomed == {move.obj for move in self.loading.values()}
        assert self._loading_bytes == sum(m.obj.size_bytes for m in self.loading.values())
        footprints = [move.record.footprint for move in self.descending]
        assert self._descending_bytes == sum(footprints)

    # --- inside ---

    def _send_down(self, shelf: Shelf, victim: Record, below: int, now_s: float) -> bool:
        """Makes `victim` leave; False when it is better to wait."""
        facts = victim.item.facts
        lower = self.shelves[below:]
        sizes = (facts.size_bytes, facts.chunk_bytes)
        takers = self._takers(lower, victim.key, *sizes)
        if takers and all(s.find(victim.key) is None for s in lower):
            if not self._is_flight_full(facts.size_bytes):
                waits = not shelf.is_pressed
                arrival = self._arrive(
                    takers, victim.key, victim.tenant, *sizes, now_s, waits=waits
                )
                if arrival is None and waits and self._ways.are_for([victim.key]):
                    return False
                if arrival is not None:
                    shelf.begin_leaving(victim)
                    self._begin_descent(Descent(shelf, victim, *arrival))
                    return True
            elif not shelf.is_pressed:
                return False
        shelf.drop(victim)
        shelf.evictions += 1
        return True

    def _is_arriving(self, key: BlockKey) -> bool:
        records = [shelf.records.get(key) for shelf in self.shelves]
        return any(record is not None and record.stage is Stage.ARRIVING for record in records)

    @staticmethod
    def _takers(
        shelves: Sequence[Shelf], key: BlockKey, size_bytes: int, chunk_bytes: int
    ) -> list[Shelf]:
        return [shelf for shelf in shelves if shelf.can_take(key, size_bytes, chunk_bytes)]

    def _arrive(
        self,
        takers: Sequence[Shelf],
        key: BlockKey,
        tenant: TenantId,
        size_bytes: int,
        chunk_bytes: int,
        now_s: float,
        *,
        waits: bool = True,
    ) -> tuple[Shelf, Record] | None:
        """A place on the first that has one, and may give it to this tenant. When none has and it
        `waits`, one of them makes room, if it can."""
        wanting: list[Shelf] = []
        for shelf in takers:
            if not shelf.fits_quota(tenant, size_bytes, chunk_bytes):
                self.counters["demotions_over_quota"] += 1
                if waits and any(record.tenant == tenant for record in shelf.gone):
                    self._ways.make(shelf, key, 0, now_s, lambda victim: False)
                continue
            record = shelf.begin_arrival(key, tenant, size_bytes, chunk_bytes, now_s)
            if record is not None:
                self._ways.end(key)
                return shelf, record
            wanting.append(shelf)
        wants_bytes = record_bytes(size_bytes, chunk_bytes)
        is_coming = waits and any(self._make_way(s, key, wants_bytes, now_s) for s in wanting)
        self.counters["demotions_no_space"] += bool(takers) and not is_coming
        return None

    def _make_way(self, shelf: Shelf, key: BlockKey, size_bytes: int, now_s: float) -> bool:
        """Whether the shelf is making room for it: it is worth asking again."""
        below = self.shelves.index(shelf) + 1
        return self._ways.make(
            shelf,
            key,
            size_bytes,
            now_s,
            lambda victim: self._send_down(shelf, victim, below, now_s),
        )

    def _is_flight_full(self, size_bytes: int) -> bool:
        wants_bytes = self._descending_bytes + size_bytes
        is_full = wants_bytes > self._flight_max_bytes or len(self.descending) >= DESCENDING_MAX
        return bool(self.descending) and is_full

    def _begin_descent(self, move: Demotion | Descent) -> None:
        self.descending.add(move)
        self._descending_bytes += move.record.footprint
        self._moves.append(move)

    def _end_descent(self, move: Demotion | Descent) -> None:
        self.descending.remove(move)
        self._descending_bytes -= move.record.footprint

    def _forget(self, shelf: Shelf, record: Record) -> None:
        shelf.lost += 1
        if record.stage is Stage.LIVE:
            shelf.drop(record)
