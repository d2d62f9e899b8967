"""W-TinyLFU: a small LRU window, and a segmented LRU that a key enters only by being used more
often than the one it would drive out. Here for comparison: it collapses in steady state.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from moonpool.cache.base import NO_HINT, BlockHint
from moonpool.cache.sketch import FrequencySketch

K = TypeVar("K", bound=Hashable)

WINDOW_SHARE = 0.01
PROTECTED_SHARE = 0.8  # of what is not window
SKETCH_KEYS_MIN = 1 << 12


class WTinyLfuPolicy(Generic[K]):
    """An `EvictionPolicy`. Constant time per key. `blocks_max` is how many it will hold; 0: the
    most it has held yet."""

    def __init__(self, blocks_max: int = 0) -> None:
        self._blocks_max = blocks_max
        self._learns_max = blocks_max == 0
        self._window: OrderedDict[K, None] = OrderedDict()  # the next to go stands first
        self._probation: OrderedDict[K, None] = OrderedDict()
        self._protected: OrderedDict[K, None] = OrderedDict()
        self._contenders: OrderedDict[K, None] = OrderedDict()  # left the window when all was full
        self._sketch_keys = blocks_max or SKETCH_KEYS_MIN
        self._sketch = FrequencySketch(self._sketch_keys)

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self:
            raise KeyError(key)
        self._window[key] = None
        self._sketch.add(key)
        full = len(self) >= self._blocks_max > 0
        self._grow()
        while len(self._window) > max(1, self._blocks_max * WINDOW_SHARE):
            moved, _ = self._window.popitem(last=False)
            self._probation[moved] = None
            if full:
                self._contenders[moved] = None

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        for key in reversed(list(keys)):
            if key in self._window:
                self._window.move_to_end(key)
            elif key in self._protected:
                self._protected.move_to_end(key)
            elif key in self._probation:
                del self._probation[key]
                self._contenders.pop(key, None)
                self._protected[key] = None
            else:
                continue
            self._sketch.add(key)
        protected_max = self._blocks_max * (1 - WINDOW_SHARE) * PROTECTED_SHARE
        while len(self._protected) > protected_max:
            self._probation[self._protected.popitem(last=False)[0]] = None

    def victim(self, now_s: float) -> K | None:
        """The loser between who left the window first and who would leave the rest."""
        incumbent = next(iter(self._probation or self._protected or self._window), None)
        contender = next(iter(self._contenders), None)
        if contender is None or incumbent is None:
            return incumbent
        won = self._sketch.count(contender) > self._sketch.count(incumbent)
        return incumbent if won else contender

    def remove(self, key: K) -> None:
        for part in (self._window, self._probation, self._protected):
            if key in part:
                del part[key]
                if key in self._contenders:
                    del self._contenders[key]
                elif self._contenders:  # the first one stays in its stead
                    self._contenders.popitem(last=False)
                return
        raise KeyError(key)

    def __len__(self) -> int:
        return len(self._window) + len(self._probation) + len(self._protected)

    def __contains__(self, key: object) -> bool:
        return key in self._window or key in self._probation or key in self._protected

    def _grow(self) -> None:
        """Notes the most it has held; far beyond what the sketch was made for, makes a larger."""
        if self._learns_max:
            self._blocks_max = max(self._blocks_max, len(self))
        if self._blocks_max > 2 * self._sketch_keys:
            self._sketch_keys = 2 * self._blocks_max
            self._sketch = FrequencySketch(self._sketch_keys)
