"""One lower tier of a node, as the core sees it: what lies there, what comes and goes. Pure.

    demotion begins -> ARRIVING -> written -> LIVE -> evicted, removed or damaged -> GONE -> erased

A GONE record keeps its place until the shell has erased it: a crash never brings it back.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from moonpool.kv import KEY_BYTES, BlockKey, unpack_keys
from moonpool.kv.named import MARK
from moonpool.messages.ids import TenantId
from moonpool.messages.store import TierStats
from services.store.admission import WriteBudget
from services.store.changes import Changes
from services.store.records import Record, Records, Stage
from services.store.tenants import TenantLedger
from services.store.tiers import LowerTier
from services.store.tiers.batch import Batch
from services.store.tiers.record import HEADER_MAX_BYTES, Facts, header_bytes, record_bytes
from services.store.tiers.vault import Item

VICTIMS_LOOKED_MAX = 64
OWN_LOOKED_MAX = 1024  # for blocks of a tenant that is above its quota
ERASURES_MAX = 1024  # at a time
TOLD_MAX = 65_536  # keys told one by one when a tier comes or goes


class Shelf:
    """One thread. `first_serial` must be above every serial of earlier lives."""

    def __init__(
        self,
        tier: LowerTier,
        *,
        headroom: float,
        budget: WriteBudget,
        first_serial: int,
        object_max_bytes: int = 1 << 40,
    ) -> None:
        self.tier = tier
        self.records = Records()  # ARRIVING or LIVE
        self.gone: set[Record] = set()
        self.changes = Changes()
        self.tenants = TenantLedger(tier.name)
        self.is_ours: Callable[[BlockKey], bool] = lambda key: True  # to evict, of a shared tier
        self.pin_of: Callable[[BlockKey], str] = lambda key: ""  # "hard", "soft" or ""
        self.evictions = 0
        self.lost = 0  # records found missing or damaged
        self.online = False  # what lies there can be read
        self.writable = False
        self.health = "starting"
        self.leaving: dict[BlockKey, Record] = {}  # LIVE, being taken over by the tier below
        self.budget = budget  # of writes
        self._high_bytes = int(tier.bytes_total * (1 - headroom))
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

    @property
    def live(self) -> int:
        """Records that are LIVE."""
        return self.records.live

    # --- condition, from the shell ---

    def set_condition(self, *, online: bool, writable: bool, health: str) -> None:
        """A tier that is away hides what it holds, here and in the index elsewhere."""
        if online != self.online:
            self._tell_all(online)
        self.online, self.writable, self.health = online, writable, health

    def load(
        self,
        items: Sequence[Item],
        known: Collection[BlockKey],
        now_s: float,
        *,
        is_refresh: bool = False,
    ) -> None:
        """Adds what lies there since before this start. What was removed meanwhile, or put anew
        (`known`), is not believed but erased; in a refresh it is another node's, and left alone."""
        if is_refresh:
            items = [item for item in items if self._is_news(item.facts.key, known)]
        batch = items if isinstance(items, Batch) else Batch.of(items)
        if not len(batch):
            return
        footprints = batch.footprints()
        places = self.tier.restore(batch.places, footprints)
        batch.places = places
        self._serial = max(self._serial, int(batch.serials.max()))
        sums = np.bincount(batch.tenants, footprints, len(batch.names))
        for tenant, size_bytes in zip(batch.names, sums, strict=True):
            if size_bytes:
                self.tenants.add(tenant, int(size_bytes))
        if len(self.records) or self.gone or not self._load_all(batch, known):
            for item in batch:
                self._load_one(item, known, now_s)

    def _load_all(self, batch: Batch, known: Collection[BlockKey]) -> bool:
        """Into an empty shelf. False, and nothing was done, when a key is there twice."""
        try:
            self.records.load(batch)
        except ValueError:
            return False
        if self.online:
            self._tell_all(True)
        for key in [*known, *(self._barred or ())]:
            record = self.records.get(key)
            if record is not None:
                self.drop(record)
        return True

    def _load_one(self, item: Item, known: Container[BlockKey], now_s: float) -> None:
        record = Record(item, Stage.ARRIVING)
        key = record.key
        if key in self.records or key in self._gone_keys:  # told twice, after an interruption
            self.tier.release(item.place, record.footprint)
            self.tenants.subtract(record.tenant, record.footprint)
        elif key in known or key in (self._barred or ()):
            self._bury(record)
        else:
            self.records.arrive(record)
            self._go_live(record)

    def _is_news(self, key: BlockKey, known: Container[BlockKey]) -> bool:
        return key not in self.records and key not in self._gone_keys and key not in known

    def forget(self, keys: Iterable[BlockKey]) -> int:
        """Other nodes have erased these; how many were still here, and not on the move."""
        forgotten = 0
        for key in keys:
            record = self.records.get(key)
            if record is not None and record.stage is Stage.LIVE and not record.moves:
                self.drop(record)
                assert self._to_erase.pop() is record
                self.end_erasure(record, True, was_ordered=False)
                forgotten += 1
        return forgotten

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
        self.records.touch(keys)
        for key in keys:
            self._stay(key)

    def readable_keys(self) -> list[BlockKey]:
        """All that can be read now."""
        return unpack_keys(self.records.live_keys()) if self.online else []

    def some_keys(self, count_max: int) -> list[BlockKey]:
        """As `readable_keys`, but no more than that; of those found last, as a rule the newest."""
        packed = self.records.live_keys() if self.online else b""
        return unpack_keys(packed[-count_max * KEY_BYTES :])

    def packed_keys(self) -> list[bytes]:
        """The same, in one piece."""
        return [self.records.live_keys()] if self.online else []

    def keys_of(self, tenant: TenantId) -> list[BlockKey]:
        """What lies here of one tenant."""
        return unpack_keys(self.records.keys_of(tenant))

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
        if not self.budget.take(wants_bytes, now_s):
            self.tier.release(place, wants_bytes)
            return None
        self._serial += 1
        facts = Facts(key, tenant, size_bytes, chunk_bytes, self._serial)
        record = Record(Item(facts, place), Stage.ARRIVING, moves=1)
        self.records.arrive(record)
        self.tenants.add(tenant, record.footprint)
        return record

    def end_arrival(self, record: Record, is_written: bool, now_s: float) -> None:
        if record.stage is Stage.ARRIVING and is_written:
            record.moves -= 1
            self._go_live(record)
            return
        if record.stage is Stage.ARRIVING:
            self.drop(record)
        self.end_move(record)

    # --- going ---

    def begin_move(self, record: Record) -> None:
        """Somebody reads it."""
        self.records.keep(record)
        record.moves += 1

    def end_move(self, record: Record) -> None:
        assert record.moves > 0
        record.moves -= 1
        if record.stage is Stage.LIVE:
            self.records.rest(record)
        elif record.stage is Stage.GONE and not record.moves:
            self._to_erase.append(record)

    def drop(self, record: Record) -> None:
        """Takes it away; it is erased when nobody moves it any more."""
        self._stay(record.key)
        self.records.remove(record)
        if record.stage is Stage.LIVE and self.online:
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
        self.tier.release(record.item.place, record.footprint)
        self.tenants.subtract(record.tenant, record.footprint)

    # --- making room ---

    def excess_bytes(self) -> int:
        """How much more must go, beyond what is going already."""
        return self.tier.bytes_used - self.going_bytes - self._high_bytes

    @property
    def going_bytes(self) -> int:
        """What will be free, once it is erased or taken over below."""
        return self._gone_bytes + self._leaving_bytes

    @property
    def is_pressed(self) -> bool:
        """Nearly full: whoever cannot be taken over below must go without."""
        return self.tier.bytes_used > (self._high_bytes + self.tier.bytes_total) // 2

    def next_victim(self, now_s: float) -> Record | None:
        """Whose turn it is. Those that are being read or leaving go to the end of the order, and so
        do pinned ones; soft pins go when there is hardly anything else."""
        soft: Record | None = None
        for _ in range(min(VICTIMS_LOOKED_MAX, self.live)):
            record = self.records.first()
            assert record is not None
            key = record.key
            pin = self.pin_of(key)
            if not record.moves and not pin and self.is_ours(key):
                return record
            if not record.moves and pin == "soft":
                soft = soft or record
            self.records.touch([key])
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
        for record in self.records.oldest(OWN_LOOKED_MAX):
            is_own = record.tenant == tenant and not record.moves and not self.pin_of(record.key)
            if over_bytes > 0 and is_own:
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
        return replace(self.tier.stats(self.live, self.evictions), health=self.health)

    def check(self) -> None:
        """Asserts that records, places and order agree."""
        self.tier.check()
        everything = [*self.records.values(), *self.gone]
        assert self.tier.bytes_used == sum(record.footprint for record in everything)
        assert len({record.item.place for record in everything}) == len(everything)
        self.records.check()
        arriving = [r for r in self.records.values() if r.stage is Stage.ARRIVING]
        assert all(record.moves == 1 for record in arriving)
        assert len(self.records) == self.live + len(arriving)
        assert all(record.stage is Stage.GONE for record in self.gone)
        assert Counter(record.key for record in self.gone) == self._gone_keys
        assert self._gone_bytes == sum(record.footprint for record in self.gone)
        assert self._leaving_bytes == sum(r.footprint for r in self.leaving.values())
        assert all(record.moves for record in self.leaving.values())

    # --- inside ---

    def _go_live(self, record: Record) -> None:
        record.stage = Stage.LIVE
        self.records.settle(record)
        if self.online:
            self.changes.stored(record.key)

    def _tell_all(self, is_stored: bool) -> None:
        """All that lies here came or went. Of very many, only named values are told one by one:
        who wants to know of blocks asks for a list."""
        tell = self.changes.stored if is_stored else self.changes.removed
        if self.live > TOLD_MAX:
            self.changes.relist()
        packed = self.records.live_keys(MARK if self.live > TOLD_MAX else b"")
        for key in unpack_keys(packed):
            tell(key)

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
