"""Everything that has a place in the tier, and who leaves when room is needed.

The tier knows places, the policy an order; this joins them: nothing leased, pinned hard or not
yet committed ever leaves.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from moonpool.cache import NO_HINT, BlockHint, EvictionPolicy
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.awaited import Awaited
from services.store.below import Below, Verdict
from services.store.changes import Changes
from services.store.notes import Notes
from services.store.objects import Seat, State, StoredObject
from services.store.tenants import TenantLedger
from services.store.tiers import Tier

# One object makes room for itself by evicting at most so many times its size, or the minimum:
# a huge object in a fragmented segment is refused rather than emptying the node.
EVICT_FACTOR = 4
EVICT_MIN_BYTES = 64 << 20
TRIM_MAX = 1024  # victims of a quiet moment: more would hold the event loop
PLACES_TRIED_MAX = 64  # when looking whether there is room


class Residents:
    """Objects by key, their places, and the way out. One thread."""

    def __init__(self, tier: Tier, policy: EvictionPolicy[BlockKey], headroom: float) -> None:
        self.tier = tier
        self.objects: dict[BlockKey, StoredObject] = {}  # every state but DOOMED
        self.doomed: set[StoredObject] = set()
        self.changes = Changes()
        self.notes = Notes()  # for other nodes, of what they miss
        self.tenants = TenantLedger(tier.name)
        self.live = 0  # objects with state LIVE
        self.evictions = 0
        self.bytes_hard = 0  # footprint of hard pins
        self.bytes_evictable = 0  # footprint of LIVE objects, unleased and not pinned hard
        self.below: Below | None = None  # who takes over what is evicted here
        # Whether an object whose turn it is must stay: pinned hard, and nowhere else.
        self.must_stay: Callable[[StoredObject], bool] = lambda obj: False
        self.on_live: Callable[[StoredObject, float], None] = lambda obj, now_s: None
        self.last_generation = 0
        self._leaving: dict[BlockKey, StoredObject] = {}  # being taken over; held meanwhile
        self._leaving_bytes = 0
        self._policy = policy
        self._soft: OrderedDict[BlockKey, None] = OrderedDict()  # oldest pin first
        self._extra: dict[BlockKey, None] = {}  # copies too many, unused since: the first to go
        self._awaited = Awaited(tier.bytes_total // 2)
        self._high_bytes = int(tier.bytes_total * (1 - headroom))

    def footprint(self, obj: StoredObject) -> int:
        """What it takes from the tier."""
        return self.tier.footprint(obj.size_bytes)

    def footprint_of(self, size_bytes: int) -> int:
        return self.tier.footprint(size_bytes)

    @property
    def free_bytes(self) -> int:
        return self.tier.bytes_total - self.tier.bytes_used

    def has_room(self, sizes: Sequence[int]) -> bool:
        """Without evicting: in places for the largest ones, and as far as bytes go for all."""
        places: list[int] = []
        for size_bytes in sorted(sizes, reverse=True)[:PLACES_TRIED_MAX]:
            place = self.tier.reserve(size_bytes)
            if place is None:
                break
            places.append(place)
        for place in reversed(places):
            self.tier.release(place)
        return len(places) == min(len(sizes), PLACES_TRIED_MAX) and self.free_bytes >= sum(sizes)

    # --- coming and going ---

    def reserve(self, size_bytes: int, now_s: float, *, spare: bool = False) -> int | None:
        """A place, if need be by evicting; None when what may leave is not enough. `spare`: what
        the tier below should have first is not evicted but sent there: ask again then."""
        place = self.tier.reserve(size_bytes)
        want_bytes = self.tier.footprint(size_bytes)
        if place is not None or self.free_bytes + self.bytes_evictable < want_bytes:
            return place
        budget_bytes = max(EVICT_FACTOR * want_bytes, EVICT_MIN_BYTES)
        while place is None and budget_bytes > 0:
            victim = self._next_victim(now_s)
            if spare and victim is not None and self.below is not None:
                verdict = self.below.take_over(victim, now_s)
                if verdict is Verdict.LATER or self._leaving_bytes > 2 * want_bytes:
                    return None
                if verdict is Verdict.BEGUN:
                    continue
            victim = victim or (None if spare else self._next_awaited() or self._next_soft())
            if victim is None:
                return None
            budget_bytes -= self._evict(victim)
            place = self.tier.reserve(size_bytes)
        return place

    def add(self, obj: StoredObject) -> None:
        """A new object in state WRITING, its place reserved."""
        assert obj.key not in self.objects
        self.objects[obj.key] = obj
        self.tenants.add(obj.tenant, self.footprint(obj))

    def next_generation(self) -> int:
        self.last_generation += 1
        return self.last_generation

    def commit(self, obj: StoredObject, checksums: bytes, now_s: float) -> None:
        """VERIFYING or LOADING -> LIVE: from now on it can be read, and evicted."""
        assert obj.state in (State.VERIFYING, State.LOADING)
        obj.state, obj.seat, obj.checksums = State.LIVE, Seat.ORDER, checksums
        self._policy.insert(obj.key, obj.size_bytes, now_s, obj.hint)
        self.tenants.came(obj.tenant, obj.key)
        self.bytes_evictable += self.footprint(obj)
        self.live += 1
        self.changes.stored(obj.key)
        self.on_live(obj, now_s)

    def drop(self, obj: StoredObject) -> None:
        """Takes it away: at once, or when its last reader is gone."""
        self._stay(obj.key)
        self._awaited.came(obj.key)
        del self.objects[obj.key]
        if obj.state is State.LIVE:
            self._unseat(obj)
            self.tenants.went(obj.tenant, obj.key)
            self._extra.pop(obj.key, None)
            self.live -= 1
            self.changes.removed(obj.key)
        if obj.leases:
            obj.state = State.DOOMED
            self.doomed.add(obj)
        else:
            self._vacate(obj)

    def trim(
        self, now_s: float, budget_bytes: int, free_bytes: int = 0, victims_max: int = 1 << 40
    ) -> None:
        """Restores the headroom, or `free_bytes` if that is more, by evicting up to `budget_bytes`,
        or by having the tier below take over as much, and no more than `victims_max`. Leaves pins,
        and for headroom's sake alone the last one."""
        high_bytes = min(self._high_bytes, self.tier.bytes_total - free_bytes)
        while self.tier.bytes_used - self._leaving_bytes > high_bytes and budget_bytes > 0:
            victims_max -= 1
            if victims_max < 0:
                return
            if len(self._policy) < 2 and not free_bytes:
                return
            victim = self._next_victim(now_s)
            if victim is None:
                return
            verdict = self.below.take_over(victim, now_s) if self.below else Verdict.NO
            if verdict is Verdict.LATER:
                return
            if verdict is Verdict.BEGUN:
                budget_bytes -= self.footprint(victim)
            else:
                budget_bytes -= self._evict(victim)

    # --- being taken over by the tier below ---

    def begin_leaving(self, obj: StoredObject) -> None:
        """It is held, and read by whoever takes it over, until `end_leaving`."""
        self.hold(obj)
        self._leaving[obj.key] = obj
        self._leaving_bytes += self.footprint(obj)

    def end_leaving(self, obj: StoredObject, now_s: float) -> None:
        """It goes, unless somebody used it meanwhile."""
        is_leaving = self._leaving.get(obj.key) is obj
        if is_leaving:
            self._stay(obj.key)
        self.let_go(obj, now_s)
        if is_leaving and obj.state is State.LIVE and not obj.leases:
            self._evict(obj)

    # --- readers ---

    def touch(self, keys: list[BlockKey], now_s: float, hint: BlockHint = NO_HINT) -> None:
        """A use of a run, head first."""
        if self._awaited:
            for key in reversed(keys):
                if not self._end_waiting(key, now_s, hint):
                    self._policy.touch([key], now_s, hint)
        else:
            self._policy.touch(keys, now_s, hint)
        self.tenants.touched(keys)
        for key in keys:
            if hint is not NO_HINT and (obj := self.objects.get(key)) is not None:
                obj.hint = hint
            if self._leaving:
                self._stay(key)
            if self._extra:
                self._extra.pop(key, None)

    def expect(self, key: BlockKey, now_s: float) -> bool:
        """A queued request will read it: others go first meanwhile. Not a use. False when it is
        not here, or so much is awaited already that it is not told apart."""
        obj = self.objects.get(key)
        if obj is None or obj.state not in (State.LIVE, State.LOADING):
            return False
        self._stay(key)
        self._extra.pop(key, None)
        is_awaited = self._awaited.expect(key, self.footprint(obj), now_s)
        if not is_awaited:
            self._return(obj, now_s)
        return is_awaited

    def mark_extra(self, key: BlockKey) -> None:
        """Others hold copies enough: unless it is used, it goes first."""
        obj = self.objects.get(key)
        if obj is not None and obj.seat is Seat.ORDER:
            self._extra[key] = None

    def hold(self, obj: StoredObject) -> None:
        """One more reader."""
        assert obj.state is State.LIVE
        if obj.leases == 0 and obj.seat is not Seat.HARD:
            self.bytes_evictable -= self.footprint(obj)
        obj.leases += 1

    def let_go(self, obj: StoredObject, now_s: float) -> None:
        """One reader less."""
        assert obj.leases > 0
        obj.leases -= 1
        if obj.leases:
            return
        if obj.state is State.DOOMED:
            self.doomed.remove(obj)
            self._vacate(obj)
            return
        if obj.seat is not Seat.HARD:
            self.bytes_evictable += self.footprint(obj)
        self._return(obj, now_s, Seat.PARKED)

    # --- quotas ---

    def fits_quota(self, tenant: TenantId, size_bytes: int, *, evict: bool) -> bool:
        """Whether the tenant may have so much more, if need be and `evict` at its own expense.
        Nothing of it goes when even that is not enough."""
        over_bytes = self.tenants.excess_bytes(tenant, self.footprint_of(size_bytes))
        if not over_bytes:
            return True
        victims: list[StoredObject] = []
        for key in self.tenants.oldest(tenant) if evict else ():
            obj = self.objects[key]
            if not obj.leases and obj.seat is not Seat.HARD and not self.must_stay(obj):
                victims.append(obj)
                over_bytes -= self.footprint(obj)
                if over_bytes <= 0:
                    break
        if over_bytes > 0:
            self.tenants.refused[tenant] += 1
            return False
        for obj in victims:
            self._evict(obj)
        self.tenants.evicted[tenant] += len(victims)
        return True

    # --- pins ---

    def reseat(self, obj: StoredObject, seat: Seat, now_s: float) -> None:
        """Pins or unpins a LIVE object: ORDER, SOFT or HARD."""
        assert obj.state is State.LIVE
        self._stay(obj.key)
        self._unseat(obj)
        obj.seat = seat
        if seat is Seat.HARD:
            self.bytes_hard += self.footprint(obj)
            return
        if not obj.leases:
            self.bytes_evictable += self.footprint(obj)
        if seat is Seat.SOFT:
            self._soft[obj.key] = None
        else:
            self._policy.insert(obj.key, obj.size_bytes, now_s, obj.hint)

    def check(self) -> None:
        """Asserts that objects, places, order, pins and sums agree."""
        self.tier.check()
        everything = [*self.objects.values(), *self.doomed]
        assert self.tier.bytes_used == sum(map(self.footprint, everything))
        by_tenant: dict[TenantId, int] = {}
        for obj in everything:
            by_tenant[obj.tenant] = by_tenant.get(obj.tenant, 0) + self.footprint(obj)
        assert dict(self.tenants.by_tenant()) == by_tenant
        assert len({obj.place for obj in everything}) == len(everything)
        for obj in self.doomed:
            assert (obj.state, obj.seat) == (State.DOOMED, Seat.NONE)
            assert obj.leases > 0
        for key, obj in self.objects.items():
            self._check_object(key, obj)
        live = [obj for obj in self.objects.values() if obj.state is State.LIVE]
        self.tenants.check({obj.key: obj.tenant for obj in live})
        assert all(self.objects[key].state is State.LIVE for key in self._extra)
        self._awaited.check()
        assert all(key in self.objects for key in self._awaited)
        assert self.live == len(live)
        assert len(self._policy) == sum(obj.seat is Seat.ORDER for obj in live)
        assert len(self._soft) == sum(obj.seat is Seat.SOFT for obj in live)
        hard = [obj for obj in live if obj.seat is Seat.HARD]
        assert self.bytes_hard == sum(map(self.footprint, hard))
        loose = [obj for obj in live if obj.seat is not Seat.HARD and not obj.leases]
        assert self.bytes_evictable == sum(map(self.footprint, loose))
        assert all(obj.leases and obj.state is State.LIVE for obj in self._leaving.values())
        assert self._leaving_bytes == sum(map(self.footprint, self._leaving.values()))

    # --- inside ---

    def _check_object(self, key: BlockKey, obj: StoredObject) -> None:
        assert obj.key == key
        assert obj.state is not State.DOOMED
        assert (obj.seat is Seat.NONE) == (obj.state is not State.LIVE)
        assert obj.leases == 0 or obj.state in (State.LIVE, State.LOADING)
        assert obj.leases > 0 or obj.seat is not Seat.PARKED
        assert (key in self._policy) == (obj.seat is Seat.ORDER)
        assert (key in self._soft) == (obj.seat is Seat.SOFT)
        assert obj.seat is not Seat.AWAITED or key in self._awaited
        assert obj.state is not State.LIVE or len(obj.checksums) == obj.checksums_bytes

    def _unseat(self, obj: StoredObject) -> None:
        if obj.seat is Seat.ORDER:
            self._policy.remove(obj.key)
        elif obj.seat is Seat.SOFT:
            del self._soft[obj.key]
        if obj.seat is Seat.HARD:
            self.bytes_hard -= self.footprint(obj)
        elif not obj.leases:
            self.bytes_evictable -= self.footprint(obj)
        obj.seat = Seat.NONE

    def _return(self, obj: StoredObject, now_s: float, seat: Seat = Seat.AWAITED) -> None:
        """Whoever had stepped out of the order, to that seat, is in it again."""
        if obj.seat is seat:
            obj.seat = Seat.ORDER
            self._policy.insert(obj.key, obj.size_bytes, now_s, obj.hint)

    def _end_waiting(self, key: BlockKey, now_s: float, hint: BlockHint = NO_HINT) -> bool:
        """Whether it comes back into the order by that, which counts as a use."""
        self._awaited.came(key)
        obj = self.objects.get(key)
        if obj is None or obj.seat is not Seat.AWAITED:
            return False
        obj.hint = obj.hint if hint is NO_HINT else hint
        self._return(obj, now_s)
        return True

    def _vacate(self, obj: StoredObject) -> None:
        self.tier.release(obj.place)
        self.tenants.subtract(obj.tenant, self.footprint(obj))

    def _stay(self, key: BlockKey) -> None:
        obj = self._leaving.pop(key, None)
        if obj is not None:
            self._leaving_bytes -= self.footprint(obj)

    def _evict(self, victim: StoredObject) -> int:
        """Bytes that it gave back."""
        self.drop(victim)
        self.evictions += 1
        return self.footprint(victim)

    def _next_victim(self, now_s: float) -> StoredObject | None:
        """Whose turn it is; whoever is being read, or awaited, steps out of the order."""
        for due in reversed(self._awaited.take_over_due(now_s)):
            self._end_waiting(due, now_s)
        for extra in self._extra:
            obj = self.objects[extra]
            if obj.seat is Seat.ORDER and not obj.leases and not self.must_stay(obj):
                return obj
        while (key := self._policy.victim(now_s)) is not None:
            obj = self.objects[key]
            if not obj.leases and self.must_stay(obj):
                self.reseat(obj, Seat.HARD, now_s)
                continue
            if not obj.leases and key not in self._awaited:
                return obj
            self._policy.remove(key)
            obj.seat = Seat.PARKED if obj.leases else Seat.AWAITED
        return None

    def _next_awaited(self) -> StoredObject | None:
        awaited = (self.objects[key] for key in self._awaited)
        return next((o for o in awaited if o.seat is Seat.AWAITED and not o.leases), None)

    def _next_soft(self) -> StoredObject | None:
        return next((o for key in self._soft if not (o := self.objects[key]).leases), None)
