"""Entries of the nvme tier's index file: 128 bytes each, which a disk writes whole or not at all.

The last word is a sum over all others, each times an odd number: any change of one word changes it,
and millions are checked in a second. Entries of the first version, with a CRC, are read too.
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.packed.sorting import has_twins, sorted_ranges
from services.store.tiers.batch import Batch, Column, distinct
from services.store.tiers.record import PAGE_BYTES, record_bytes
from services.store.tiers.vault import Item

ENTRY_BYTES = 128
EMPTY = bytes(ENTRY_BYTES)
# magic, version, key, serial, place, size, chunk, tenant; the sum follows
_ENTRY = struct.Struct("<4sH16sQQQQ64s2x")
_SUM = struct.Struct("<Q")
_CRC, _CRC_AT = struct.Struct("<I"), 118  # of version 1
_MAGIC, _VERSION = b"MPIX", 2
_MASK64 = (1 << 64) - 1
FACTORS = [(0x9E37_79B9_7F4A_7C15 * (2 * i + 1)) & _MASK64 | 1 for i in range(15)]
_COLUMNS = np.dtype(
    {
        "names": ["magic", "version", "low", "high", "serial", "place", "size", "chunk", "tenant"],
        "formats": ["S4", "<u2", "<u8", "<u8", "<i8", "<i8", "<i8", "<i8", "S64"],
        "offsets": [0, 4, 6, 14, 22, 30, 38, 46, 54],
        "itemsize": ENTRY_BYTES,
    }
)


def pack_entry(item: Item) -> bytes:
    facts = item.facts
    raw = _ENTRY.pack(
        _MAGIC,
        _VERSION,
        facts.key,
        facts.serial,
        item.place,
        facts.size_bytes,
        facts.chunk_bytes,
        facts.tenant.encode("ascii"),
    )
    words = struct.unpack("<15Q", raw)
    total = sum(word * factor for word, factor in zip(words, FACTORS, strict=True))
    return raw + _SUM.pack(total & _MASK64)


def read_entries(raw: bytes, bytes_total: int) -> tuple[Column, Batch]:
    """(numbers of the entries that hold, what they say); the others are empty, torn, damaged, of
    another version, or stick out."""
    rows = np.frombuffer(raw, _COLUMNS)
    words = np.frombuffer(raw, "<u8").reshape(-1, ENTRY_BYTES // 8)
    sums = (words[:, :15] * np.array(FACTORS, np.uint64)).sum(axis=1, dtype=np.uint64)
    ours = rows["magic"] == _MAGIC
    good = ours & (rows["version"] == _VERSION) & (sums == words[:, 15])
    for number in np.flatnonzero(ours & (rows["version"] == 1)).tolist():
        entry = raw[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES]
        good[number] = _CRC.unpack_from(entry, _CRC_AT)[0] == zlib.crc32(entry[:_CRC_AT])
    size, chunk = rows["size"], rows["chunk"]
    good &= (
        (chunk >= 1)
        & (size >= 1)
        & (size <= bytes_total)
        & (rows["serial"] >= 0)
        & (rows["place"] >= 0)
    )
    good &= (size % np.maximum(chunk, 1) == 0) & (rows["place"] % PAGE_BYTES == 0)
    numbers = np.flatnonzero(good)
    held = rows[numbers]
    tenants, firsts = distinct(held["tenant"])
    names = [TenantId(held["tenant"][at].decode("ascii", errors="replace")) for at in firsts]
    batch = Batch(
        held["low"].copy(),
        held["high"].copy(),
        held["place"].copy(),
        held["size"].copy(),
        held["chunk"].copy(),
        held["serial"].copy(),
        tenants,
        names,
    )
    inside = batch.places + batch.footprints() <= bytes_total
    return numbers[inside], batch.chosen(inside)


@dataclass(frozen=True, slots=True)
class Sorted:
    """Entries that can be true together, and the slots of those that cannot."""

    kept: list[tuple[int, Item]]  # (slot, item)
    dropped: list[int]


def settle(found: Iterable[tuple[int, Item]]) -> Sorted:
    """Of two entries for one key, or for places that overlap, the one written later is true."""
    newest = sorted(found, key=lambda each: each[1].facts.serial, reverse=True)
    by_key: dict[BlockKey, tuple[int, Item]] = {}
    dropped: list[int] = []
    for slot, item in newest:
        if item.facts.key in by_key:
            dropped.append(slot)
        else:
            by_key[item.facts.key] = (slot, item)
    kept: list[tuple[int, Item]] = []
    for slot, item in sorted(by_key.values(), key=lambda each: each[1].place):
        while kept and _end_of(kept[-1][1]) > item.place:
            if kept[-1][1].facts.serial > item.facts.serial:
                dropped.append(slot)
                break
            dropped.append(kept.pop()[0])
        else:
            kept.append((slot, item))
    return Sorted(kept, dropped)


def settle_all(slots: Column, batch: Batch) -> tuple[Column, Batch, list[int]]:
    """(slots, what they say) oldest first, of what can be true together, and the slots of the
    others. Only what contradicts something else is looked at one by one."""
    doubtful = _share_keys(batch) | _share_places(batch)
    dropped: list[int] = []
    if doubtful.any():
        at = np.flatnonzero(doubtful).tolist()
        settled = settle((index, batch[index]) for index in at)
        keep = ~doubtful
        keep[[index for index, _ in settled.kept]] = True
        dropped = [int(slots[index]) for index in settled.dropped]
        slots, batch = slots[keep], batch.chosen(keep)
    if np.any(batch.serials[1:] < batch.serials[:-1]):
        order = np.argsort(batch.serials, kind="stable")
        slots, batch = slots[order], batch.chosen(order)
    return slots, batch, dropped


def _share_keys(batch: Batch) -> Column:
    """Those whose key another one may have too."""
    if not has_twins(batch.low):
        return np.zeros(len(batch), bool)
    order = np.argsort(batch.low)
    low = batch.low[order]
    return _marked(order, low[1:] == low[:-1])


def _share_places(batch: Batch) -> Column:
    """Those that overlap others, or lie in a chain of such."""
    starts, ends = sorted_ranges(batch.places, batch.footprints())
    if not np.any(starts[1:] < ends[:-1]):
        return np.zeros(len(batch), bool)
    order = np.argsort(batch.places)
    ends = np.maximum.accumulate((batch.places + batch.footprints())[order])
    return _marked(order, batch.places[order][1:] < ends[:-1])


def _marked(order: Column, is_tied: Column) -> Column:
    """`is_tied[i]`: the i-th in `order` and the next."""
    marks = np.zeros(len(order), bool)
    marks[order[:-1][is_tied]] = True
    marks[order[1:][is_tied]] = True
    return marks


def _end_of(item: Item) -> int:
    return item.place + record_bytes(item.facts.size_bytes, item.facts.chunk_bytes)
