"""The index file of the nvme tier: one small entry per record, written after its bytes.

After a start a scan of this one file tells what the segment holds; objects' bytes are never
mistaken for entries, and each record is verified when it is read.
"""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import numpy as np

from services.store.packed.numbers import Numbers
from services.store.tiers.batch import Batch, Column
from services.store.tiers.entries import EMPTY, ENTRY_BYTES, pack_entry, read_entries, settle_all
from services.store.tiers.vault import Item

_SCAN_BYTES = 8 << 20  # whole entries


class IndexFile:
    """Thread-safe. OSError on whatever the system refuses."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = Lock()
        self._slots = Numbers()  # place -> slot
        self._free = array("I")  # slots below _end
        self._end = 0  # slots in use or free are below it

    def scan(self, bytes_total: int) -> Batch:
        """Reads everything; clears what contradicts something newer. Oldest first."""
        parts = list(self._read(bytes_total))
        slots = np.concatenate([numbers for numbers, _ in parts] or [np.zeros(0, np.int64)])
        batch = Batch.joined([part for _, part in parts])
        slots, batch, dropped = settle_all(slots, batch)
        with self._lock:
            self._end = os.fstat(self._fd).st_size // ENTRY_BYTES
            self._slots.build(batch.places, slots)
            is_free = np.ones(self._end, bool)
            is_free[slots] = False
            free = np.flatnonzero(is_free)[::-1].astype(np.uint32)  # the lowest is taken first
            self._free = array("I", free.tobytes())
        for slot in dropped:
            os.pwrite(self._fd, EMPTY, slot * ENTRY_BYTES)
        return batch

    def _read(self, bytes_total: int) -> Iterator[tuple[Column, Batch]]:
        at = 0
        while chunk := os.pread(self._fd, _SCAN_BYTES, at):
            whole = chunk[: len(chunk) // ENTRY_BYTES * ENTRY_BYTES]
            numbers, batch = read_entries(whole, bytes_total)
            yield numbers + at // ENTRY_BYTES, batch
            at += len(chunk)

    def add(self, item: Item) -> None:
        """From now on a scan finds it."""
        with self._lock:
            slot = self._slots.get(item.place)
            if slot < 0:
                if self._free:
                    slot = self._free.pop()
                else:
                    slot, self._end = self._end, self._end + 1
                self._slots.set(item.place, slot)
        os.pwrite(self._fd, pack_entry(item), slot * ENTRY_BYTES)

    def clear(self, place: int) -> None:
        """From now on no scan finds it. No error when nothing is there."""
        with self._lock:
            slot = self._slots.get(place)
        if slot < 0:
            return
        os.pwrite(self._fd, EMPTY, slot * ENTRY_BYTES)
        with self._lock:
            self._slots.pop(place)
            self._free.append(slot)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def bytes_used(self) -> int:
        """Of memory."""
        return self._slots.bytes_used() + self._free.itemsize * len(self._free)
