"""Moonpool's own policy: one LRU list per class of blocks, and of their ends the least worthwhile
goes, by a life table that is learned on line.

A class is made of what is known when a block is used: how often it was used (1, 2, 3, more), how
long it had waited this time, how long the prompt is, and whether the prompt ended inside it. With
one class it is LRU. Until enough uses were seen, it is LRU too.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from math import inf
from typing import Generic, NamedTuple, TypeVar

from moonpool.cache.base import NO_HINT, BlockHint
from moonpool.cache.lifetable import LifeTable, LifeTableShape

K = TypeVar("K", bound=Hashable)

COUNT_MAX = 4  # uses told apart: 1, 2, 3, 4 and more
WAIT_EDGES_S = (15.0, 60.0, 240.0)
RUN_EDGES_BLOCKS = (8, 32, 128)
REFIT_USES = 4000
REMEMBERED_MAX = 1 << 18  # keys that left

_WAITS = len(WAIT_EDGES_S) + 1
_RUNS = len(RUN_EDGES_BLOCKS) + 1
_CLASSES = 1 + _RUNS + (COUNT_MAX - 1) * _RUNS * _WAITS
# Families: partial blocks, then one per use count.
_FAMILIES = [0] + [1] * _RUNS + [2 + at // (_RUNS * _WAITS) for at in range(_CLASSES - 1 - _RUNS)]

_NEVER = (inf, inf, -1)  # the rank of an empty class


class _Entry(NamedTuple):
    uses: int
    used_s: float  # when last
    kind: int  # its class


class OurPolicy(Generic[K]):
    """An `EvictionPolicy`. Per use constant time; per eviction one look at each of a few dozen
    classes; a refit of a few milliseconds every `REFIT_USES` uses."""

    def __init__(self, shape: LifeTableShape | None = None) -> None:
        self.table = LifeTable(_FAMILIES, shape)
        self._here: dict[K, _Entry] = {}
        self._gone: OrderedDict[K, _Entry] = OrderedDict()  # who left first stands first
        self._order: list[OrderedDict[K, None]] = [OrderedDict() for _ in _FAMILIES]
        self._ranks: list[tuple[float, float, int]] = [_NEVER] * _CLASSES  # of each list's first
        self._ranks_until_s = -inf  # by then some list's first is in its next age bin
        self._stale: set[int] = set()  # classes whose list changed since
        self._newest: K | None = None  # the last one inserted
        self._refit_in = REFIT_USES

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self._here:
            raise KeyError(key)
        self._use(key, self._gone.pop(key, None), now_s, hint)
        self._newest = key

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        here = self._here
        for key in reversed(list(keys)):
            entry = here.get(key)
            if entry is not None:
                del self._order[entry.kind][key]
                self._stale.add(entry.kind)
                self._use(key, entry, now_s, hint)

    def victim(self, now_s: float) -> K | None:
        if now_s >= self._ranks_until_s:
            self._ranks_until_s = inf
            self._stale = set(range(_CLASSES))
        ranks = self._ranks
        for kind in self._stale:
            ranks[kind] = self._rank(kind, now_s)
        self._stale.clear()
        kind = min(ranks)[2]
        if kind < 0:
            return None
        key = next(iter(self._order[kind]))
        if key == self._newest and len(self._here) > 1:  # what was just written gets a while
            others = [rank for rank in ranks if rank[2] != kind]
            key = next(iter(self._order[min(others)[2]])) if min(others)[2] >= 0 else key
        return key

    def remove(self, key: K) -> None:
        entry = self._here.pop(key)
        del self._order[entry.kind][key]
        self._stale.add(entry.kind)
        self._gone[key] = entry
        horizon_s = entry.used_s - self.table.shape.horizon_s
        while len(self._gone) > REMEMBERED_MAX or self._first_gone_s() < horizon_s:
            self._gone.popitem(last=False)

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, key: object) -> bool:
        return key in self._here

    # --- inside ---

    def _first_gone_s(self) -> float:
        return next(iter(self._gone.values())).used_s

    def _use(self, key: K, before: _Entry | None, now_s: float, hint: BlockHint) -> None:
        """Enters a key at the end of its new class's list; `before` is what was known of it."""
        if before is None:
            uses, wait_s = 1, 0.0
        else:
            uses, wait_s = before.uses + 1, now_s - before.used_s
            self.table.end(before.kind, before.used_s, now_s)
        kind = _class_of(uses, wait_s, hint)
        self._here[key] = _Entry(uses, now_s, kind)
        self._order[kind][key] = None
        self._stale.add(kind)
        self.table.begin(kind, now_s)
        self._refit_in -= 1
        if self._refit_in <= 0:
            self._refit_in = REFIT_USES
            self.table.refit(now_s)
            self._ranks_until_s = -inf

    def _rank(self, kind: int, now_s: float) -> tuple[float, float, int]:
        """(gain, last use, class) of the list's first key: the least goes, the older one if equal.
        A list holds its keys by age, so its first is the oldest."""
        key = next(iter(self._order[kind]), None)
        if key is None:
            return _NEVER
        used_s = self._here[key].used_s
        edges_s = self.table.edges_s
        age_bin = bisect_right(edges_s, now_s - used_s)
        if age_bin < len(edges_s):
            self._ranks_until_s = min(self._ranks_until_s, used_s + edges_s[age_bin])
        return self.table.gains[kind][age_bin], used_s, kind


def _class_of(uses: int, wait_s: float, hint: BlockHint) -> int:
    """0 for partial blocks, then those used once by run, then the others by uses, run, wait."""
    if hint.partial:
        return 0
    run = bisect_right(RUN_EDGES_BLOCKS, hint.run_blocks)
    if uses == 1:
        return 1 + run
    again = (min(uses, COUNT_MAX) - 2) * _RUNS + run
    return 1 + _RUNS + again * _WAITS + bisect_right(WAIT_EDGES_S, wait_s)
