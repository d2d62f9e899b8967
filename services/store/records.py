"""What lies on a shelf, by key: millions of rows of numbers, and objects for the few that move.

A record at rest is a row; `get` makes an object that tells of it, good for reading and for
`keep`, which makes that object the one and only until `rest`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.packed import Order, Rows, Table
from services.store.packed.rows import PAGE_BITS, PAGE_ROWS
from services.store.packed.table import joined, joined_many, split
from services.store.tiers.batch import Batch
from services.store.tiers.record import Facts, record_bytes
from services.store.tiers.vault import Item

Kind = tuple[TenantId, int, int]  # tenant, size, chunk
_MASK = PAGE_ROWS - 1


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


class Records:
    """ARRIVING and LIVE ones; the latter in the order of use."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._table = Table(self._rows)
        self._order = Order(self._rows)
        self._busy: dict[BlockKey, Record] = {}  # ARRIVING, or with moves
        self._kinds: list[Kind] = []
        self._kind_of: dict[Kind, int] = {}
        self._kind_uses: list[int] = []
        self._kinds_free: list[int] = []

    # --- looking ---

    def get(self, key: BlockKey) -> Record | None:
        record = self._busy.get(key)
        if record is None and (slot := self._table.find(key)) >= 0:
            record = self._record_at(slot)
        return record

    def __getitem__(self, key: BlockKey) -> Record:
        record = self.get(key)
        if record is None:
            raise KeyError(key)
        return record

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._busy or self._table.find(key) >= 0

    def __len__(self) -> int:
        arriving = sum(record.stage is Stage.ARRIVING for record in self._busy.values())
        return len(self._table) + arriving

    @property
    def live(self) -> int:
        return len(self._table)

    def values(self) -> Iterator[Record]:
        """Each as an object: linear, and slow."""
        for record in list(self._busy.values()):
            if record.stage is Stage.ARRIVING:
                yield record
        for slot in self._order.slots():
            record = self._record_at(slot)
            yield self._busy.get(record.key, record)

    def items(self) -> Iterator[tuple[BlockKey, Record]]:
        return ((record.key, record) for record in self.values())

    def live_keys(self, prefix: bytes = b"") -> bytes:
        """Of all LIVE ones that begin so (up to eight bytes), packed; milliseconds per million."""
        low, high = self._rows.column("low"), self._rows.column("high")
        if gone := self._rows.free_slots():
            low, high = np.delete(low, gone), np.delete(high, gone)
        if prefix:
            mask = np.uint64((1 << 8 * len(prefix)) - 1)
            which = (low & mask) == np.uint64(int.from_bytes(prefix, "little"))
            low, high = low[which], high[which]
        return joined_many(low, high)

    def keys_of(self, tenant: TenantId) -> bytes:
        """Of all of one tenant, packed; milliseconds per million."""
        busy = [r for r in self._busy.values() if r.stage is Stage.ARRIVING and r.tenant == tenant]
        kinds = [index for index, kind in enumerate(self._kinds) if kind[0] == tenant]
        low, high = self._rows.column("low"), self._rows.column("high")
        which = np.isin(self._rows.column("kind"), kinds)
        which[self._rows.free_slots()] = False
        return b"".join(record.key for record in busy) + joined_many(low[which], high[which])

    def oldest(self, count_max: int) -> list[Record]:
        """Some of the LIVE ones, the least recently used first."""
        found = map(self._record_at, self._order.slots(count_max))
        return [self._busy.get(record.key, record) for record in found]

    def first(self) -> Record | None:
        """The LIVE one that was used least recently."""
        slot = self._order.first
        if slot < 0:
            return None
        record = self._record_at(slot)
        return self._busy.get(record.key, record)

    # --- changing ---

    def arrive(self, record: Record) -> None:
        """A new one, ARRIVING."""
        assert record.key not in self
        self._busy[record.key] = record

    def settle(self, record: Record) -> None:
        """It became LIVE: the most recently used one."""
        facts = record.item.facts
        slot = self._rows.take()
        page, at = self._rows.pages[slot >> PAGE_BITS], slot & _MASK
        page.low[at], page.high[at] = split(facts.key)
        page.place[at], page.serial[at] = record.item.place, facts.serial
        page.kind[at] = self._take_kind((facts.tenant, facts.size_bytes, facts.chunk_bytes))
        self._table.add(slot)
        self._order.append(slot)
        self.rest(record)

    def keep(self, record: Record) -> None:
        """It is about to move: from now on `get` gives this very object."""
        known = self._busy.setdefault(record.key, record)
        assert known is record, "two objects tell of one record that moves"

    def rest(self, record: Record) -> None:
        """A LIVE one moves no more."""
        if not record.moves:
            self._busy.pop(record.key, None)

    def remove(self, record: Record) -> None:
        """ARRIVING or LIVE. KeyError when it is not there."""
        self._busy.pop(record.key, None)
        if record.stage is Stage.ARRIVING:
            return
        slot = self._table.find(record.key)
        self._table.remove(record.key)
        self._order.remove(slot)
        self._drop_kind(self._rows.pages[slot >> PAGE_BITS].kind[slot & _MASK])
        self._rows.give_back(slot)

    def touch(self, keys: Sequence[BlockKey]) -> None:
        """A use of a run, head first: its tail goes before its head. Unknown ones are ignored."""
        for key in reversed(keys):
            slot = self._table.find(key)
            if slot >= 0:
                self._order.renew(slot)

    def load(self, batch: Batch) -> None:
        """Many LIVE ones at once, least recent first, when there are none yet. ValueError, and
        nothing is loaded, when a key is there twice."""
        assert not len(self)
        rows = Rows()
        table, order = Table(rows), Order(rows)
        first = rows.take_many(len(batch))
        for name in ("low", "high"):
            rows.fill(first, name, getattr(batch, name))
        table.build(batch.low, batch.high, first)
        numbers, meant = batch.kinds()
        uses = np.bincount(numbers, minlength=len(meant))
        known = [self._take_kind(kind, int(count)) for kind, count in zip(meant, uses, strict=True)]
        rows.fill(first, "place", batch.places)
        rows.fill(first, "serial", batch.serials)
        rows.fill(first, "kind", np.asarray(known, np.uint32)[numbers])
        order.extend(first, len(batch))
        self._rows, self._table, self._order = rows, table, order

    def bytes_used(self) -> int:
        """Of memory, by rows and table."""
        return self._rows.bytes_used() + self._table.bytes_used()

    def check(self) -> None:
        """Asserts that rows, table, order and objects agree."""
        self._table.check()
        slots = self._order.slots()
        assert len(slots) == len(set(slots)) == len(self._order) == len(self._table)
        assert len(slots) == len(self._rows)
        uses = [0] * len(self._kinds)
        for slot in slots:
            record = self._record_at(slot)
            assert self._table.find(record.key) == slot
            uses[self._rows.pages[slot >> PAGE_BITS].kind[slot & _MASK]] += 1
        assert uses == self._kind_uses
        for key, record in self._busy.items():
            slot = self._table.find(key)
            assert record.key == key
            assert (slot >= 0) == (record.stage is Stage.LIVE)
            assert record.stage is Stage.ARRIVING or record.moves > 0
            assert slot < 0 or self._record_at(slot).item == record.item

    # --- inside ---

    def _record_at(self, slot: int) -> Record:
        page, at = self._rows.pages[slot >> PAGE_BITS], slot & _MASK
        tenant, size_bytes, chunk_bytes = self._kinds[page.kind[at]]
        key = BlockKey(joined(page.low[at], page.high[at]))
        facts = Facts(key, tenant, size_bytes, chunk_bytes, page.serial[at])
        return Record(Item(facts, page.place[at]), Stage.LIVE)

    def _take_kind(self, kind: Kind, uses: int = 1) -> int:
        number = self._kind_of.get(kind)
        if number is None:
            if self._kinds_free:
                number = self._kinds_free.pop()
                self._kinds[number] = kind
            else:
                number = len(self._kinds)
                self._kinds.append(kind)
                self._kind_uses.append(0)
            self._kind_of[kind] = number
        self._kind_uses[number] += uses
        return number

    def _drop_kind(self, number: int) -> None:
        self._kind_uses[number] -= 1
        if not self._kind_uses[number]:
            del self._kind_of[self._kinds[number]]
            self._kinds_free.append(number)
