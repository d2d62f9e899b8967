"""Reading: who gets a lease on what, and what is sent for from below. Pure."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from moonpool.cache import BlockHint
from moonpool.kv import BlockKey
from moonpool.messages.store import GetSlot
from services.store.ladder import Ladder
from services.store.leases import Lease, Leases
from services.store.lookup import Lookup
from services.store.objects import StoredObject
from services.store.residents import Residents


class Reads:
    """The core's get verbs; it has checked the request and let time pass."""

    def __init__(
        self,
        residents: Residents,
        ladder: Ladder,
        lookup: Lookup,
        leases: Leases,
        counters: Counter[str],
    ) -> None:
        self._residents = residents
        self._ladder = ladder
        self._lookup = lookup
        self._leases = leases
        self._counters = counters

    def start(
        self, keys: Sequence[BlockKey], lease_s: float, now_s: float, hint: BlockHint
    ) -> tuple[int, list[GetSlot]]:
        slots, hits = self._lookup.slots(keys)
        if not lease_s:
            return 0, slots
        for slot in slots:
            self._counters["get_misses"] += slot.status == "miss"
            self._counters["get_hits_dram"] += slot.status == "hit"
        lease = 0
        if hits:
            self.touch([obj.key for obj in hits], now_s, hint)
            lease = self._hold(hits, now_s + lease_s)
        self._promote(keys, slots, hint, now_s)
        return lease, slots

    def more(
        self,
        lease: int,
        keys: Sequence[BlockKey],
        slots: list[GetSlot],
        lease_s: float,
        now_s: float,
        hint: BlockHint,
    ) -> int:
        late = [i for i, slot in enumerate(slots) if slot.status == "loading"]
        again, hits = self._lookup.slots([keys[i] for i in late])
        for index, slot in zip(late, again, strict=True):
            slots[index] = msgspec.structs.replace(slot, tier=slots[index].tier)
            self._counters[f"get_hits_{slots[index].tier}"] += slot.status == "hit"
            self._counters["get_misses"] += slot.status == "miss"
        held = self._leases.find(lease)
        if lease and held is None:
            return lease
        if hits:
            self.touch([obj.key for obj in hits], now_s, hint)
        if hits and held is not None:
            for obj in hits:
                self._residents.hold(obj)
                held.objects.append(obj)
        elif hits:
            self._leases.require_room()
            lease = self._hold(hits, now_s + lease_s)
        self._promote(keys, slots, hint, now_s)
        return lease

    def end(self, lease_id: int, now_s: float) -> bool:
        lease = self._leases.close(lease_id)
        if lease is not None:
            self.let_go(lease, now_s)
        valid = lease is not None and now_s <= lease.expires_s
        self._counters["gets_too_late"] += not valid and lease_id > 0  # 0: is anybody there?
        return valid

    def ahead(self, keys: Sequence[BlockKey], now_s: float, hint: BlockHint) -> int:
        before = len(self._ladder.loading)
        for key in keys:
            self._ladder.promote(key, now_s, hint)
        self._counters["promoted_ahead"] += len(self._ladder.loading) - before
        for key in reversed(keys):  # if any must go after all: a run's tail before its head
            self._counters["awaited"] += self._residents.expect(key, now_s)
        return sum(key in self._ladder.loading for key in keys)

    def touch(self, keys: list[BlockKey], now_s: float, hint: BlockHint) -> None:
        """A use of a run, head first."""
        self._residents.touch(keys, now_s, hint)
        self._ladder.used(keys, now_s)

    def let_go(self, lease: Lease, now_s: float) -> None:
        """The lease is over: what it held may go, the tail of a run first."""
        for obj in reversed(lease.objects):
            self._residents.let_go(obj, now_s)

    def _hold(self, objects: list[StoredObject], expires_s: float) -> int:
        for obj in objects:
            self._residents.hold(obj)
        return self._leases.open(objects, expires_s)

    def _promote(
        self, keys: Sequence[BlockKey], slots: Sequence[GetSlot], hint: BlockHint, now_s: float
    ) -> None:
        """Only after the hits are held: loading evicts others."""
        for key, slot in zip(keys, slots, strict=True):
            if slot.status == "loading":
                self._ladder.promote(key, now_s, hint)
