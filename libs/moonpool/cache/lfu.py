"""Least frequently used; of those used equally often the least recent goes. Here for comparison.

It never ages: what was used often once stays, so on blocks of chats it collapses in steady state.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from moonpool.cache.base import NO_HINT, BlockHint

K = TypeVar("K", bound=Hashable)


class LfuPolicy(Generic[K]):
    """An `EvictionPolicy`. Constant time per key, plus log of the number of distinct counts."""

    def __init__(self) -> None:
        self._count: dict[K, int] = {}
        self._with_count: dict[int, OrderedDict[K, None]] = {}  # the next to go stands first
        self._counts: list[int] = []  # heap; every key of _with_count stands in it once

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self._count:
            raise KeyError(key)
        self._enter(key, 1)

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        for key in reversed(list(keys)):
            count = self._count.get(key)
            if count is not None:
                del self._with_count[count][key]
                self._enter(key, count + 1)

    def victim(self, now_s: float) -> K | None:
        while self._counts:
            keys = self._with_count[self._counts[0]]
            if keys:
                return next(iter(keys))
            del self._with_count[heappop(self._counts)]
        return None

    def remove(self, key: K) -> None:
        count = self._count.pop(key)
        del self._with_count[count][key]

    def __len__(self) -> int:
        return len(self._count)

    def __contains__(self, key: object) -> bool:
        return key in self._count

    def _enter(self, key: K, count: int) -> None:
        self._count[key] = count
        keys = self._with_count.get(count)
        if keys is None:
            keys = self._with_count[count] = OrderedDict()
            heappush(self._counts, count)
        keys[key] = None
