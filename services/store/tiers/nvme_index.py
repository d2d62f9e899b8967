"""The index file of the nvme tier: one small entry per record, written after its bytes.

An entry fits a disk sector, so it is there or it is not; its CRC decides. After a crash a scan of
this one file tells what the segment holds; objects' bytes are never mistaken for entries.
"""

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path
from threading import Lock

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.tiers.record import Facts, record_bytes
from services.store.tiers.vault import Item

ENTRY_BYTES = 128
_SCAN_BYTES = 4 << 20  # whole entries
# magic, version, key, serial, place, size, chunk, tenant; the CRC follows
_ENTRY = struct.Struct("<4sH16sQQQQ64s")
_CRC = struct.Struct("<I")
_MAGIC, _VERSION = b"MPIX", 1
_EMPTY = bytes(ENTRY_BYTES)


@dataclass(frozen=True, slots=True)
class Sorted:
    """Entries that can be true together, oldest first, and the slots of those that cannot."""

    kept: list[tuple[int, Item]]  # (slot, item)
    dropped: list[int]


class IndexFile:
    """Thread-safe. OSError on whatever the system refuses."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = Lock()
        self._slots: dict[int, int] = {}  # place -> slot
        self._free: list[int] = []  # heap of slots below _end
        self._end = 0  # slots in use or free are below it

    def scan(self, bytes_total: int) -> list[Item]:
        """Reads everything; clears what is torn or contradicts something newer."""
        found: dict[int, Item] = {}
        slots = os.fstat(self._fd).st_size // ENTRY_BYTES
        at = 0
        while chunk := os.pread(self._fd, _SCAN_BYTES, at):
            for offset in range(0, len(chunk) - ENTRY_BYTES + 1, ENTRY_BYTES):
                item = unpack_entry(chunk[offset : offset + ENTRY_BYTES])
                if item is not None:
                    found[(at + offset) // ENTRY_BYTES] = item
            at += len(chunk)
        settled = settle(found.items(), bytes_total)
        with self._lock:
            self._slots = {item.place: slot for slot, item in settled.kept}
            self._end = slots
            self._free = sorted(set(range(slots)) - set(self._slots.values()))
        for slot in settled.dropped:
            os.pwrite(self._fd, _EMPTY, slot * ENTRY_BYTES)
        return [item for _, item in settled.kept]

    def add(self, item: Item) -> None:
        """From now on a scan finds it."""
        with self._lock:
            slot = self._slots.get(item.place)
            if slot is None:
                if not self._free:
                    heappush(self._free, self._end)
                    self._end += 1
                slot = heappop(self._free)
                self._slots[item.place] = slot
        os.pwrite(self._fd, pack_entry(item), slot * ENTRY_BYTES)

    def clear(self, place: int) -> None:
        """From now on no scan finds it. No error when nothing is there."""
        with self._lock:
            slot = self._slots.get(place)
        if slot is None:
            return
        os.pwrite(self._fd, _EMPTY, slot * ENTRY_BYTES)
        with self._lock:
            del self._slots[place]
            heappush(self._free, slot)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
    return (raw + _CRC.pack(zlib.crc32(raw))).ljust(ENTRY_BYTES, b"\0")


def unpack_entry(raw: bytes) -> Item | None:
    """None when it is empty, torn, damaged or of another version."""
    body = raw[: _ENTRY.size]
    magic, version, key, serial, place, size, chunk, tenant = _ENTRY.unpack(body)
    if magic != _MAGIC or version != _VERSION:
        return None
    if _CRC.unpack_from(raw, _ENTRY.size)[0] != zlib.crc32(body):
        return None
    if chunk < 1 or size < 1 or size % chunk:
        return None
    return Item(Facts(BlockKey(key), tenant_of(tenant), size, chunk, serial), place)


@lru_cache(maxsize=4096)
def tenant_of(raw: bytes) -> TenantId:
    """One string per tenant, however many entries name it."""
    return TenantId(raw.rstrip(b"\0").decode("ascii", errors="replace"))


def settle(found: Iterable[tuple[int, Item]], bytes_total: int) -> Sorted:
    """Of two entries for one key, or for places that overlap, the one written later is true."""
    newest = sorted(found, key=lambda each: each[1].facts.serial, reverse=True)
    by_key: dict[BlockKey, tuple[int, Item]] = {}
    ends: dict[int, int] = {}  # slot -> where its record ends
    dropped: list[int] = []
    for slot, item in newest:
        ends[slot] = item.place + record_bytes(item.facts.size_bytes, item.facts.chunk_bytes)
        if item.facts.key in by_key or ends[slot] > bytes_total:
            dropped.append(slot)
        else:
            by_key[item.facts.key] = (slot, item)
    kept: list[tuple[int, Item]] = []
    for slot, item in sorted(by_key.values(), key=lambda each: each[1].place):
        while kept and ends[kept[-1][0]] > item.place:
            if kept[-1][1].facts.serial > item.facts.serial:
                dropped.append(slot)
                break
            dropped.append(kept.pop()[0])
        else:
            kept.append((slot, item))
    kept.sort(key=lambda each: each[1].facts.serial)
    return Sorted(kept, dropped)
