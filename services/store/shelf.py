"""One lower tier of a node, as the core sees it: what lies there, what comes and goes. Pure.

    demotion begins -> ARRIVING -> written -> LIVE -> evicted, removed or damaged -> GONE -> erased

A GONE record keeps its place until the shell has erased it: a crash never brings it back.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import StrEnum

from moonpool.cache import EvictionPolicy
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.store import TierStats
from services.store.admission import WriteBudget
from services.store.changes import Changes
from services.store.tenants import TenantLedger
from services.store.tiers import LowerTier
from services.store.tiers.record import HEADER_MAX_BYTES, Facts, header_bytes, record_bytes
from services.store.tiers.vault import Item

VICTIMS_LOOKED_MAX = 64
ERASURES_MAX = 1024  # at a time


class Stage(StrEnum):
    ARRIVING = "arriving"
    LIVE = "live"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Record:
    """`item.place` is its place in the ledger."""

    item: Item
    stage: Stage
    moves: int = 0  # reads and writes under way; it is not erased before they end

    @property
    def key(self) -> BlockKey:
        return self.item.facts.key

    @property
    def tenant(self) -> TenantId:
        return self.item.facts.tenant

    @property
    def footprint(self) -> int:
        return record_bytes(self.item.facts.size_bytes, self.item.facts.chunk_bytes)


class Shelf:
    """One thread. `first_serial` must be above every serial of earlier lives."""

    def __init__(
        self,
        tier: LowerTier,
        policy: EvictionPolicy[BlockKey],
        *,
        headroom: float,
        budget: WriteBudget,
        first_serial: int,
        object_max_bytes: int = 1 << 40,
    ) -> None:
        self.tier = tier
        self.records: dict[BlockKey, Record] = {}  # ARRIVING or LIVE
        self.gone: set[Record] = set()
        self.changes = Changes()
        self.tenants = TenantLedger(tier.name)
        self.is_ours: Callable[[BlockKey], bool] = lambda key: True  # to evict, of a shared tier
        self.pin_of: Callable[[BlockKey], str] = lambda key: ""  # "hard", "soft" or ""
        self.live = 0
        self.evictions = 0
        self.lost = 0  # records found missing or damaged
        self.online = False  # what lies there can be read
        self.writable = False
        self.health = "starting"
        self.leaving: dict[BlockKey, Record] = {}  # LIVE, being taken over by the tier below
        self._policy = policy
        self._high_bytes = int(tier.bytes_total * (1 - headroom))
        self._budget = budget
        self._object_max_bytes = object_max_bytes
        self._serial = first_serial
        self._gone_keys: Counter[BlockKey] = Counter()
        self._to_erase: list[Record] = []
        self._leaving_bytes = 0
        self._gone_bytes = 0
        self._erasing = 0  # handed to the shell
        # Keys removed before the shell has told all that lies there: not to be believed then.
        self._barred: set[BlockKey] | None = set()

    @property
    def name(self) -> str:
        return self.tier.name

    # --- condition, from the shell ---

    def set_condition(self, *, online: bool, writable: bool, health: str) -> None:
        """A tier that is away hides what it holds, here and in the index elsewhere."""
        if online != self.online:
            for key, record in self.records.items():
                if record.stage is Stage.LIVE:
                    (self.changes.stored if online else self.changes.removed)(key)
        self.online, self.writable, self.health = online, writable, health

    def load(
        self,
        items: Sequence[Item],
        known: Container[BlockKey],
        now_s: float,
        *,
        is_refresh: bool = False,
    ) -> None:
        """Adds what lies there since before this start. What was removed meanwhile, or put anew
        (`known`), is not believed but erased; in a refresh it is another node's, and left alone."""
        if is_refresh:
            items = [item for item in items if self._is_news(item.facts.key, known)]
        sizes = [record_bytes(i.facts.size_bytes, i.facts.chunk_bytes) for i in items]
        places = self.tier.restore([(i.place, s) for i, s in zip(items, sizes, strict=True)])
        for item, place in zip(items, places, strict=True):
            record = Record(Item(item.facts, place), Stage.ARRIVING)
            self.tenants.add(record.tenant, record.footprint)
            self._serial = max(self._serial, item.facts.serial)
            key = record.key
            if key in self.records or key in self._gone_keys:  # told twice, after an interruption
                self.tier.release(place)
                self.tenants.subtract(record.tenant, record.footprint)
            elif key in known or key in (self._barred or ()):
                self._bury(record)
            else:
                self.records[key] = record
                self._go_live(record, now_s)

    def _is_news(self, key: BlockKey, known: Container[BlockKey]) -> bool:
        return key not in self.records and key not in self._gone_keys and key not in known

    def live_records(self) -> dict[BlockKey, Record]:
        """To be compared with what a listing begun after this finds."""
        return {key: r for key, r in self.records.items() if r.stage is Stage.LIVE}

    def forget_missing(self, before: dict[BlockKey, Record], found: Container[BlockKey]) -> int:
        """Other nodes have erased what a listing did not find again; how many."""
        missing = 0
        for key, record in before.items():
            is_same = self.records.get(key) is record and record.stage is Stage.LIVE
            if key not in found and is_same and not record.moves:
                self.drop(record)
                self._to_erase.remove(record)
                self.end_erasure(record, True, was_ordered=False)
                missing += 1
        return missing

    def end_load(self) -> None:
        """All that lies there has been told."""
        self._barred = None

    def bar(self, key: BlockKey) -> None:
        """It was removed: should it turn up while loading, it goes too."""
        if self._barred is not None:
            self._barred.add(key)

    # --- looking ---

    def find(self, key: BlockKey) -> Record | None:
        """What can be read now."""
        record = self.records.get(key)
        return record if self.online and record and record.stage is Stage.LIVE else None

    def touch(self, keys: Sequence[BlockKey], now_s: float) -> None:
        """A use of a run, head first, wherever it was read."""
        self._policy.touch(keys, now_s)
        self.tenants.touched(keys)
        for key in keys:
            self._stay(key)

    def readable_keys(self) -> list[BlockKey]:
        """All that can be read now."""
        if not self.online:
            return []
        return [key for key, record in self.records.items() if record.stage is Stage.LIVE]

    def keys_of(self, tenant: TenantId) -> list[BlockKey]:
        """What lies here of one tenant. Looks at everything."""
        live = (r for r in self.records.values() if r.stage is Stage.LIVE)
        return [record.key for record in live if record.tenant == tenant]

    # --- coming ---

    def can_take(self, key: BlockKey, size_bytes: int, chunk_bytes: int) -> bool:
        return (
            self.writable
            and size_bytes <= self._object_max_bytes
            and key not in self.records
            and key not in self._gone_keys  # erased first: the two would meet in one place
            and header_bytes(size_bytes, chunk_bytes) <= HEADER_MAX_BYTES
            and record_bytes(size_bytes, chunk_bytes) <= self._high_bytes
        )

    def begin_arrival(
        self, key: BlockKey, tenant: TenantId, size_bytes: int, chunk_bytes: int, now_s: float
    ) -> Record | None:
        """A place for it; None when there is none, or the day's writes are spent."""
        wants_bytes = record_bytes(size_bytes, chunk_bytes)
        place = self.tier.reserve(wants_bytes)
        if place is None:
            return None
        if not self._budget.take(wants_bytes, now_s):
            self.tier.release(place)
            return None
        self._serial += 1
        facts = Facts(key, tenant, size_bytes, chunk_bytes, self._serial)
        record = Record(Item(facts, place), Stage.ARRIVING, moves=1)
        self.records[key] = record
        self.tenants.add(tenant, record.footprint)
        return record

    def end_arrival(self, record: Record, is_written: bool, now_s: float) -> None:
        if record.stage is Stage.ARRIVING and is_written:
            record.moves -= 1
            self._go_live(record, now_s)
            return
        if record.stage is Stage.ARRIVING:
            self.drop(record)
        self.end_move(record)

    # --- going ---

    def begin_move(self, record: Record) -> None:
        """Somebody reads it."""
        record.moves += 1

    def end_move(self, record: Record) -> None:
        assert record.moves > 0
        record.moves -= 1
        if record.stage is Stage.GONE and not record.moves:
            self._to_erase.append(record)

    def drop(self, record: Record) -> None:
        """Takes it away; it is erased when nobody moves it any more."""
        self._stay(record.key)
        del self.records[record.key]
        if record.stage is Stage.LIVE:
            self._policy.remove(record.key)
            self.tenants.went(record.tenant, record.key)
            self.live -= 1
            if self.online:
                self.changes.removed(record.key)
        self._bury(record)

    def take_erasures(self) -> list[Record]:
        """To be erased by the shell, which then calls `end_erasure`."""
        if not self.writable:
            return []
        erasures_max = ERASURES_MAX if self.health == "ok" else 1  # a trial
        count = max(0, erasures_max - self._erasing)
        records, self._to_erase = self._to_erase[:count], self._to_erase[count:]
        self._erasing += len(records)
        return records

    def end_erasure(self, record: Record, is_erased: bool, *, was_ordered: bool = True) -> None:
        """Its place is free again; what could not be erased is tried again."""
        self._erasing -= was_ordered
        if not is_erased:
            self._to_erase.append(record)
            return
        self.gone.remove(record)
        self._gone_bytes -= record.footprint
        self._gone_keys[record.key] -= 1
        if not self._gone_keys[record.key]:
            del self._gone_keys[record.key]
        self.tier.release(record.item.place)
        self.tenants.subtract(record.tenant, record.footprint)

    # --- making room ---

    def excess_bytes(self) -> int:
        """How much more must go, beyond what is going already."""
        going_bytes = self._gone_bytes + self._leaving_bytes
        return self.tier.bytes_used - going_bytes - self._high_bytes

    @property
    def is_pressed(self) -> bool:
        """Nearly full: whoever cannot be taken over below must go without."""
        return self.tier.bytes_used > (self._high_bytes + self.tier.bytes_total) // 2

    def next_victim(self, now_s: float) -> Record | None:
        """Whose turn it is. Those that are being read or leaving go to the end of the order, and so
        do pinned ones; soft pins go when there is hardly anything else."""
        soft: Record | None = None
        for _ in range(min(VICTIMS_LOOKED_MAX, len(self._policy))):
            key = self._policy.victim(now_s)
            if key is None:
                return None
            record = self.records[key]
            pin = self.pin_of(key)
            if not record.moves and not pin and self.is_ours(key):
                return record
            if not record.moves and pin == "soft":
                soft = soft or record
            self._policy.remove(key)
            self._policy.insert(key, record.item.facts.size_bytes, now_s)
        return soft if self.is_pressed else None

    def fits_quota(self, tenant: TenantId, size_bytes: int, chunk_bytes: int) -> bool:
        """Whether the tenant may have so much more here. One whose policy is to evict pays with its
        own oldest, whose places are free once they are erased."""
        over_bytes = self.tenants.excess_bytes(tenant, record_bytes(size_bytes, chunk_bytes))
        if not over_bytes:
            return True
        self.tenants.refused[tenant] += 1
        if not self.tenants.quotas.evicts(tenant):
            return False
        over_bytes -= sum(record.footprint for record in self.gone if record.tenant == tenant)
        for key in self.tenants.oldest(tenant):
            record = self.records[key]
            if over_bytes > 0 and not record.moves and not self.pin_of(key):
                over_bytes -= record.footprint
                self.drop(record)
                self.evictions += 1
                self.tenants.evicted[tenant] += 1
        return False

    def begin_leaving(self, record: Record) -> None:
        """The tier below takes it over; it is readable here meanwhile."""
        self.begin_move(record)
        self.leaving[record.key] = record
        self._leaving_bytes += record.footprint

    def end_leaving(self, record: Record) -> None:
        """It goes, unless somebody used it meanwhile."""
        if self.leaving.get(record.key) is record:
            self.drop(record)
            self.evictions += 1
        self.end_move(record)

    def stats(self) -> TierStats:
        said = self.tier.stats(self.live, self.evictions)
        return TierStats(
            said.tier, said.blocks, said.bytes_used, said.bytes_total, said.evictions, self.health
        )

    def check(self) -> None:
        """Asserts that records, places and order agree."""
        self.tier.check()
        everything = [*self.records.values(), *self.gone]
        self.tenants.check({r.key: r.tenant for r in everything if r.stage is Stage.LIVE})
        assert self.tier.bytes_used == sum(record.footprint for record in everything)
        assert len({record.item.place for record in everything}) == len(everything)
        live = [r for r in self.records.values() if r.stage is Stage.LIVE]
        assert self.live == len(live) == len(self._policy)
        for key, record in self.records.items():
            assert record.key == key
            assert record.stage is not Stage.GONE
            assert record.stage is not Stage.ARRIVING or record.moves == 1
            assert (key in self._policy) == (record.stage is Stage.LIVE)
        assert all(record.stage is Stage.GONE for record in self.gone)
        assert Counter(record.key for record in self.gone) == self._gone_keys
        assert self._gone_bytes == sum(record.footprint for record in self.gone)
        assert self._leaving_bytes == sum(r.footprint for r in self.leaving.values())
        assert all(record.moves for record in self.leaving.values())

    # --- inside ---

    def _go_live(self, record: Record, now_s: float) -> None:
        record.stage = Stage.LIVE
        self._policy.insert(record.key, record.item.facts.size_bytes, now_s)
        self.tenants.came(record.tenant, record.key)
        self.live += 1
        if self.online:
            self.changes.stored(record.key)

    def _bury(self, record: Record) -> None:
        record.stage = Stage.GONE
        self.gone.add(record)
        self._gone_bytes += record.footprint
        self._gone_keys[record.key] += 1
        if not record.moves:
            self._to_erase.append(record)

    def _stay(self, key: BlockKey) -> None:
        record = self.leaving.pop(key, None)
        if record is not None:
            self._leaving_bytes -= record.footprint
