"""Pins: soft ones hold an object for a while, as long as there is other room; hard ones always.

A pin is on a key, wherever its object lies: in dram it stays there; below, nobody evicts it; should
it come back after an eviction or a restart, it is pinned still. Hard pins outlive the node: the
shell keeps them where all nodes of the mesh see them. Pure.
"""

from collections import Counter
from dataclasses import dataclass

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.deadlines import Deadlines
from services.store.ladder import Ladder
from services.store.limits import Limits
from services.store.objects import Seat, State, StoredObject
from services.store.residents import Residents
from services.store.tenants import Quotas

PIN_KINDS = ("soft", "hard", "none", "copies")
SOFT_MAX = 1 << 20  # soft pins at a time

Change = tuple[TenantId, BlockKey, int]  # the last: how many nodes are to hold it; 0: unpinned


@dataclass(slots=True)
class HardPin:
    tenant: TenantId
    size_bytes: int  # 0 until its object was seen here
    replicas: int


class Pins:
    """Who is pinned, until when."""

    def __init__(
        self, residents: Residents, ladder: Ladder, quotas: Quotas, limits: Limits
    ) -> None:
        self.bytes_by_tenant: Counter[TenantId] = Counter()  # pinned hard
        self._residents = residents
        self._ladder = ladder
        self._quotas = quotas
        self._limits = limits
        self._hard: dict[BlockKey, HardPin] = {}
        self._soft: dict[BlockKey, float] = {}  # until when
        self._ends: Deadlines[BlockKey] = Deadlines()
        self._changes: list[Change] = []
        residents.must_stay = self._must_stay
        residents.on_live = self._landed
        for shelf in ladder.shelves:
            shelf.pin_of = self.kind_of

    def kind_of(self, key: BlockKey) -> str:
        """ "hard", "soft" or ""."""
        return "hard" if key in self._hard else "soft" if key in self._soft else ""

    def is_hard(self, key: BlockKey, tenant: TenantId) -> bool:
        pin = self._hard.get(key)
        return pin is not None and pin.tenant == tenant

    def replicas_of(self, key: BlockKey) -> int:
        """How many nodes a hard pin wants; 0 when there is none."""
        pin = self._hard.get(key)
        return pin.replicas if pin else 0

    def pin(
        self, tenant: TenantId, key: BlockKey, kind: str, ttl_s: float, replicas: int, now_s: float
    ) -> str:
        """ "pinned", "unpinned", "over_quota", or "miss", which is also what another tenant put.
        A hard pin never turns soft. "copies" leaves pins as they are: whoever is "pinned" is here,
        to be held by so many nodes."""
        obj, size_bytes = self._find(tenant, key)
        if not size_bytes:
            return "miss"
        if kind == "copies":
            return "pinned"
        if kind == "none":
            self._unpin(tenant, key, obj, now_s)
            return "unpinned"
        if kind == "soft":
            return self._pin_soft(key, obj, min(ttl_s, self._limits.soft_pin_max_s), now_s)
        return self._pin_hard(tenant, key, obj, size_bytes, replicas, now_s)

    def restore(self, tenant: TenantId, key: BlockKey, replicas: int, now_s: float) -> None:
        """A hard pin as all nodes know it; `replicas` 0: it ended."""
        obj, size_bytes = self._find(tenant, key)
        if not replicas:
            if self.is_hard(key, tenant):
                self._forget(key)
                if obj is not None and obj.seat is Seat.HARD:
                    self._residents.reseat(obj, Seat.ORDER, now_s)
        elif key in self._hard:
            self._hard[key].replicas = replicas
        else:
            self._remember(tenant, key, size_bytes, replicas)
            if obj is not None:
                self._landed(obj, now_s)

    def hard_keys(self) -> list[BlockKey]:
        return list(self._hard)

    def replicated(self) -> list[BlockKey]:
        """Keys of hard pins that want more than one copy."""
        return [key for key, pin in self._hard.items() if pin.replicas > 1]

    def take_changes(self) -> list[Change]:
        """Hard pins made and ended here since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def expire(self, now_s: float) -> None:
        """Ends soft pins that ran out. One renewed meanwhile stays."""
        for key in self._ends.pop_due(now_s):
            if self._soft.get(key, now_s + 1.0) > now_s:
                continue
            del self._soft[key]
            obj = self._residents.objects.get(key)
            if obj is not None and obj.state is State.LIVE and obj.seat is Seat.SOFT:
                self._residents.reseat(obj, Seat.ORDER, now_s)

    def count(self, kind: str) -> int:
        """How many are pinned: kind is hard or soft."""
        return len(self._hard if kind == "hard" else self._soft)

    def stats(self) -> dict[str, int]:
        return {"pinned_hard": len(self._hard), "pinned_soft": len(self._soft)}

    def check(self) -> None:
        """Asserts that pins, seats and sums agree."""
        by_tenant: Counter[TenantId] = Counter()
        for pin in self._hard.values():
            by_tenant[pin.tenant] += pin.size_bytes
        assert +by_tenant == +self.bytes_by_tenant
        for key, obj in self._residents.objects.items():
            assert obj.seat is not Seat.HARD or key in self._hard
            assert obj.seat is not Seat.SOFT or key in self._soft

    # --- inside ---

    def _find(self, tenant: TenantId, key: BlockKey) -> tuple[StoredObject | None, int]:
        """(the object in dram, its size wherever it lies; 0 when it is nowhere, or not theirs)"""
        obj = self._residents.objects.get(key)
        if obj is not None and obj.state is State.LIVE:
            return (obj, obj.size_bytes) if obj.tenant == tenant else (None, 0)
        found = self._ladder.find(key)
        if found is None or found[1].tenant != tenant:
            return None, 0
        return None, found[1].item.facts.size_bytes

    def _pin_soft(self, key: BlockKey, obj: StoredObject | None, ttl_s: float, now_s: float) -> str:
        if key in self._hard:
            return "pinned"
        if len(self._soft) >= SOFT_MAX and key not in self._soft:
            return "over_quota"
        self._soft[key] = now_s + ttl_s
        self._ends.add(key, now_s + ttl_s)
        if obj is not None:
            self._residents.reseat(obj, Seat.SOFT, now_s)
        return "pinned"

    def _pin_hard(
        self,
        tenant: TenantId,
        key: BlockKey,
        obj: StoredObject | None,
        size_bytes: int,
        replicas: int,
        now_s: float,
    ) -> str:
        known = self._hard.get(key)
        if known is not None:
            if known.replicas != replicas:
                known.replicas = replicas
                self._changes.append((tenant, key, replicas))
            return "pinned"
        quota = self._quotas.get(tenant).hard_bytes
        if quota is not None and self.bytes_by_tenant[tenant] + size_bytes > quota:
            return "over_quota"
        if not self._has_room(obj, size_bytes):
            return "over_quota"
        self._soft.pop(key, None)
        self._remember(tenant, key, size_bytes, replicas)
        self._changes.append((tenant, key, replicas))
        if obj is not None:
            self._residents.reseat(obj, Seat.HARD, now_s)
            self._ladder.secure(obj, now_s)
        return "pinned"

    def _has_room(self, obj: StoredObject | None, size_bytes: int) -> bool:
        """Half of a node can be pinned, not more."""
        share = self._limits.hard_pin_share_max
        if obj is not None:
            wants_bytes = self._residents.bytes_hard + self._residents.footprint(obj)
            return wants_bytes <= self._residents.tier.bytes_total * share
        below_bytes = sum(shelf.tier.bytes_total for shelf in self._ladder.shelves)
        return sum(self.bytes_by_tenant.values()) + size_bytes <= below_bytes * share

    def _unpin(
        self, tenant: TenantId, key: BlockKey, obj: StoredObject | None, now_s: float
    ) -> None:
        self._soft.pop(key, None)
        if self.is_hard(key, tenant):
            self._forget(key)
            self._changes.append((tenant, key, 0))
        if obj is not None and obj.seat in (Seat.SOFT, Seat.HARD):
            self._residents.reseat(obj, Seat.ORDER, now_s)

    def _remember(self, tenant: TenantId, key: BlockKey, size_bytes: int, replicas: int) -> None:
        self._hard[key] = HardPin(tenant, size_bytes, replicas)
        self.bytes_by_tenant[tenant] += size_bytes

    def _forget(self, key: BlockKey) -> None:
        pin = self._hard.pop(key)
        self.bytes_by_tenant[pin.tenant] -= pin.size_bytes

    def _must_stay(self, obj: StoredObject) -> bool:
        """Its turn to go, but it is pinned hard and lies nowhere else here."""
        return self.is_hard(obj.key, obj.tenant) and not self._ladder.is_below(obj.key)

    def _landed(self, obj: StoredObject, now_s: float) -> None:
        """It became live in dram: what was pinned is pinned again. With a copy below it may leave
        dram nevertheless."""
        pin = self._hard.get(obj.key)
        if pin is not None and pin.tenant == obj.tenant:
            self.bytes_by_tenant[pin.tenant] += obj.size_bytes - pin.size_bytes
            pin.size_bytes = obj.size_bytes
            if not self._ladder.is_below(obj.key):
                self._residents.reseat(obj, Seat.HARD, now_s)
                self._ladder.secure(obj, now_s)
        elif obj.key in self._soft:
            self._residents.reseat(obj, Seat.SOFT, now_s)
