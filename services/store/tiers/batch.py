"""Many items at once, as columns: what a tier tells at a start, without an object per record."""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from moonpool.kv import BlockKey
from moonpool.kv.checksum import CHECKSUM_BYTES
from moonpool.messages.ids import TenantId
from services.store.tiers.record import HEAD_BYTES, PAGE_BYTES, Facts
from services.store.tiers.vault import Item

Column = npt.NDArray[Any]
FEW = 32  # values that are looked for one after the other


class Batch(Sequence[Item]):
    """A sequence of items; numbers are int64, halves of keys uint64."""

    def __init__(
        self,
        low: Column,
        high: Column,
        places: Column,
        sizes: Column,
        chunks: Column,
        serials: Column,
        tenants: Column,
        names: Sequence[TenantId],
    ) -> None:
        self.low = low  # of keys: the first eight bytes, little-endian
        self.high = high
        self.places = places
        self.sizes = sizes
        self.chunks = chunks
        self.serials = serials
        self.tenants = tenants  # indices of names
        self.names = list(names)

    @classmethod
    def of(cls, items: Iterable[Item]) -> "Batch":
        rows = list(items)
        names = list(dict.fromkeys(item.facts.tenant for item in rows))
        index = {name: i for i, name in enumerate(names)}
        words = np.frombuffer(b"".join(item.facts.key for item in rows), "<u8").reshape(-1, 2)
        numbers = [
            (
                i.place,
                i.facts.size_bytes,
                i.facts.chunk_bytes,
                i.facts.serial,
                index[i.facts.tenant],
            )
            for i in rows
        ]
        places, sizes, chunks, serials, tenants = np.array(numbers, np.int64).reshape(-1, 5).T
        low, high = words[:, 0].copy(), words[:, 1].copy()
        return cls(low, high, places, sizes, chunks, serials, tenants, names)

    @classmethod
    def joined(cls, parts: Sequence["Batch"]) -> "Batch":
        """One after the other."""
        if not parts:
            return cls.of([])
        names = list(dict.fromkeys(name for part in parts for name in part.names))
        index = {name: number for number, name in enumerate(names)}
        tenants = [np.array([index[n] for n in p.names], np.int64)[p.tenants] for p in parts]

        def column(name: str) -> Column:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            column("low"),
            column("high"),
            column("places"),
            column("sizes"),
            column("chunks"),
            column("serials"),
            np.concatenate(tenants),
            names,
        )

    def footprints(self) -> Column:
        """What each takes: as `record_bytes` says."""
        sums = self.sizes // self.chunks * CHECKSUM_BYTES
        return _rounded(sums + HEAD_BYTES) + _rounded(self.sizes)

    def kinds(self) -> tuple[Column, list[tuple[TenantId, int, int]]]:
        """(a number per item, what the numbers mean: tenant, size, chunk)."""
        codes = (self.sizes * 1_000_003 + self.chunks) * 1_000_003 + self.tenants
        numbers, firsts = distinct(codes)
        meant = [
            (self.names[self.tenants[at]], int(self.sizes[at]), int(self.chunks[at]))
            for at in firsts
        ]
        return numbers, meant

    def chosen(self, which: Column) -> "Batch":
        """Those at these indices, or where a mask is true."""
        return Batch(
            self.low[which],
            self.high[which],
            self.places[which],
            self.sizes[which],
            self.chunks[which],
            self.serials[which],
            self.tenants[which],
            self.names,
        )

    def __len__(self) -> int:
        return len(self.low)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> "Batch": ...
    def __getitem__(self, index: int | slice) -> "Item | Batch":
        if isinstance(index, slice):
            return self.chosen(np.arange(len(self))[index])
        key = int(self.low[index]).to_bytes(8, "little") + int(self.high[index]).to_bytes(
            8, "little"
        )
        tenant = self.names[self.tenants[index]]
        size, chunk = int(self.sizes[index]), int(self.chunks[index])
        facts = Facts(BlockKey(key), tenant, size, chunk, int(self.serials[index]))
        return Item(facts, int(self.places[index]))


def distinct(values: Column) -> tuple[Column, list[int]]:
    """(a number per value, where each number first stands)."""
    numbers = np.full(len(values), -1, np.int64)
    firsts: list[int] = []
    at = 0
    while len(firsts) < FEW:
        left = np.flatnonzero(numbers[at:] < 0)
        if not len(left):
            return numbers, firsts
        at += int(left[0])
        numbers[values == values[at]] = len(firsts)
        firsts.append(at)
    _, where, inverse = np.unique(values, return_index=True, return_inverse=True)
    return inverse.astype(np.int64), [int(index) for index in where]


def _rounded(sizes: Column) -> Column:
    """To whole pages."""
    pages: Column = -(-sizes // PAGE_BYTES) * PAGE_BYTES
    return pages
