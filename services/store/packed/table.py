"""Key -> slot, by open addressing over columns of numbers; the keys themselves lie in the rows.

It is cut into shards, so that growing, which takes a shard's time and not the whole table's, never
holds anybody for long. The hash is keyed anew in every process: who chooses keys cannot choose
where they meet.
"""

import secrets
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from moonpool.kv import BlockKey, unpack_keys
from services.store.packed.rows import PAGE_BITS, U64, Rows
from services.store.packed.sorting import order_by_top

KEY_BYTES = 16
SHARD_BITS = 11
SHARDS = 1 << SHARD_BITS
CELLS_MIN_BITS = 4
SLACK = 64  # cells beyond the last home: runs do not wrap around
FILL_MAX = 0.7
_MASK64 = (1 << 64) - 1
_PAGE_MASK = (1 << PAGE_BITS) - 1
_EMPTY, _DELETED = 0, 0xFFFF_FFFF  # else slot + 1


class Shard:
    """`cells[home ..]` until an empty one. `home` is the hash's bits below the shard's."""

    __slots__ = ("bits", "cells", "used")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.cells: Any = np.zeros((1 << bits) + SLACK, np.uint32).data
        self.used = 0  # cells that are not empty


_NO_SHARD = Shard(0)  # stands for every shard that has no key yet


class Table:
    """Over `rows`, whose columns `low` and `high` hold each slot's key."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._factors = (secrets.randbits(64) | 1, secrets.randbits(64) | 1)
        self._shards = [_NO_SHARD] * SHARDS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, key: bytes) -> int:
        """Its slot, or -1."""
        low, high = split(key)
        hashed = self._hash(low, high)
        shard = self._shards[hashed >> (64 - SHARD_BITS)]
        cell = self._cell(shard, hashed, low, high)
        return shard.cells[cell] - 1 if cell >= 0 else -1

    def add(self, slot: int) -> None:
        """A slot whose key is in the rows already, and not in the table."""
        page, at = self._rows.pages[slot >> PAGE_BITS], slot & _PAGE_MASK
        hashed = self._hash(page.low[at], page.high[at])
        number = hashed >> (64 - SHARD_BITS)
        shard = self._shards[number]
        if shard is _NO_SHARD or shard.used >= FILL_MAX * (1 << shard.bits):
            shard = self._shards[number] = self._regrown(shard, CELLS_MIN_BITS)
        while not self._put(shard, hashed, slot):
            shard = self._shards[number] = self._regrown(shard, shard.bits + 1)
        self._count += 1

    def remove(self, key: bytes) -> None:
        """KeyError when it is not there."""
        low, high = split(key)
        hashed = self._hash(low, high)
        shard = self._shards[hashed >> (64 - SHARD_BITS)]
        cell = self._cell(shard, hashed, low, high)
        if cell < 0:
            raise KeyError(key)
        if shard.cells[cell + 1] == _EMPTY:
            shard.cells[cell] = _EMPTY
            shard.used -= 1
        else:
            shard.cells[cell] = _DELETED
        self._count -= 1

    def build(self, low: U64, high: U64, first: int) -> None:
        """All at once, into an empty table: slots `first`, `first + 1`, .. ValueError when a key is
        there twice."""
        assert not self._count
        hashed = self._hash_many(low, high)
        order = order_by_top(hashed)
        hashed = hashed[order]
        top = hashed >> np.uint64(32)
        ties = np.flatnonzero(top[1:] == top[:-1])
        near = np.union1d(order[ties], order[ties + 1])
        if len(set(zip(low[near].tolist(), high[near].tolist(), strict=True))) < len(near):
            raise ValueError("a key is there twice")
        edges = np.searchsorted(hashed >> np.uint64(64 - SHARD_BITS), np.arange(SHARDS + 1))
        slots = (order + (first + 1)).astype(np.uint32)
        for number in range(SHARDS):
            start, end = int(edges[number]), int(edges[number + 1])
            if start < end:
                self._shards[number] = _built(hashed[start:end], slots[start:end])
        self._count = len(low)

    def bytes_used(self) -> int:
        """Of memory."""
        return sum(shard.cells.nbytes for shard in self._shards if shard is not _NO_SHARD)

    def check(self) -> None:
        """Asserts that every key is found where it is. Linear."""
        shards = [shard for shard in self._shards if shard.used]
        slots = [cell - 1 for s in shards for cell in s.cells if cell not in (_EMPTY, _DELETED)]
        assert len(slots) == len(set(slots)) == self._count
        for slot in slots:
            page, at = self._rows.pages[slot >> PAGE_BITS], slot & _PAGE_MASK
            assert self.find(joined(page.low[at], page.high[at])) == slot
        assert all(s.used == np.count_nonzero(s.cells) for s in shards)
        assert not any(_NO_SHARD.cells)

    def _hash(self, low: int, high: int) -> int:
        mixed = (low * self._factors[0] + (high ^ (high >> 32)) * self._factors[1]) & _MASK64
        mixed ^= mixed >> 32
        return mixed * self._factors[0] & _MASK64

    def _hash_many(self, low: U64, high: U64) -> U64:
        first, second = (np.uint64(factor) for factor in self._factors)
        folded = np.bitwise_xor(high, np.right_shift(high, np.uint64(32)))
        mixed = np.multiply(low, first, dtype=np.uint64)
        mixed += np.multiply(folded, second, dtype=np.uint64)
        mixed ^= np.right_shift(mixed, np.uint64(32))
        return np.multiply(mixed, first, dtype=np.uint64)

    def _cell(self, shard: Shard, hashed: int, low: int, high: int) -> int:
        """Where the key's cell is; -1 when it is not there."""
        cells, pages = shard.cells, self._rows.pages
        cell = _home(hashed, shard.bits)
        while value := cells[cell]:
            if value != _DELETED:
                page, at = pages[(value - 1) >> PAGE_BITS], (value - 1) & _PAGE_MASK
                if page.low[at] == low and page.high[at] == high:
                    return cell
            cell += 1
        return -1

    @staticmethod
    def _put(shard: Shard, hashed: int, slot: int) -> bool:
        """False when the run reaches the end of the shard."""
        cells = shard.cells
        cell = _home(hashed, shard.bits)
        while cells[cell] not in (_EMPTY, _DELETED):
            cell += 1
        if cell == len(cells) - 1:  # the last stays empty: it ends every search
            return False
        shard.used += cells[cell] == _EMPTY
        cells[cell] = slot + 1
        return True

    def _regrown(self, shard: Shard, bits_min: int) -> Shard:
        """With room for twice as many as are there; deleted ones are gone."""
        slots = [value - 1 for value in shard.cells if value not in (_EMPTY, _DELETED)]
        bits = max(bits_min, (2 * len(slots)).bit_length())
        while True:
            grown = Shard(bits)
            if all(self._put(grown, self._hash_of(slot), slot) for slot in slots):
                return grown
            bits += 1

    def _hash_of(self, slot: int) -> int:
        page, at = self._rows.pages[slot >> PAGE_BITS], slot & _PAGE_MASK
        return self._hash(page.low[at], page.high[at])


def split(key: bytes) -> tuple[int, int]:
    return int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")


def joined(low: int, high: int) -> bytes:
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def split_many(keys: bytes | memoryview) -> tuple[U64, U64]:
    """The columns of packed keys."""
    words = np.frombuffer(keys, "<u8").reshape(-1, 2).astype(np.uint64, copy=False)
    return words[:, 0].copy(), words[:, 1].copy()


def joined_many(low: U64, high: U64) -> bytes:
    """Packed keys."""
    words = np.empty((len(low), 2), np.uint64)
    words[:, 0], words[:, 1] = low, high
    return words.tobytes() if sys.byteorder == "little" else words.byteswap().tobytes()


def not_among(keys: bytes, others: Sequence[bytes]) -> list[BlockKey]:
    """Packed keys that are in none of the other packs, by 64 bits of each: two that share them
    count as one. For a thread: seconds for tens of millions."""
    low, high = split_many(keys)
    missing = ~np.isin(_mixed(low, high), _mixed(*split_many(b"".join(others))))
    return unpack_keys(joined_many(low[missing], high[missing]))


def _mixed(low: U64, high: U64) -> U64:
    return low * np.uint64(0x9E3779B97F4A7C15) + high


def _home(hashed: int, bits: int) -> int:
    return (hashed >> (64 - SHARD_BITS - bits)) & ((1 << bits) - 1)


def _built(hashed: U64, slots: "np.typing.NDArray[np.uint32]") -> Shard:
    """From hashes in order: each goes to its home, or behind the one before it."""
    bits = max(CELLS_MIN_BITS, int(len(slots) / FILL_MAX).bit_length())
    while True:
        shard = Shard(bits)
        homes = (hashed >> np.uint64(64 - SHARD_BITS - bits)) & np.uint64((1 << bits) - 1)
        steps = np.arange(len(slots), dtype=np.int64)
        cells = np.maximum.accumulate(homes.astype(np.int64) - steps) + steps
        if cells[-1] < len(shard.cells) - 1:
            np.asarray(shard.cells)[cells] = slots
            shard.used = len(slots)
            return shard
        bits += 1
