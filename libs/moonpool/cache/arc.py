"""ARC: two LRU lists, of keys used once and of keys used again, whose split adapts to who returns.

Each list remembers as many keys that left it; one that returns moves the split its list's way.
Here for comparison.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from moonpool.cache.base import NO_HINT, BlockHint
from moonpool.cache.ghosts import Ghosts

K = TypeVar("K", bound=Hashable)


class ArcPolicy(Generic[K]):
    """An `EvictionPolicy`. Constant time per key. `blocks_max` is how many it will hold; 0: the
    most it has held yet."""

    def __init__(self, blocks_max: int = 0) -> None:
        self._blocks_max = blocks_max
        self._learns_max = blocks_max == 0
        self._once: OrderedDict[K, None] = OrderedDict()  # the next to go stands first
        self._again: OrderedDict[K, None] = OrderedDict()
        self._left_once: Ghosts[K] = Ghosts()
        self._left_again: Ghosts[K] = Ghosts()
        self._once_target = 0.0  # 0 <= _once_target <= _blocks_max

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self:
            raise KeyError(key)
        once, again = max(len(self._left_once), 1), max(len(self._left_again), 1)
        if self._left_once.take(key):
            grown = self._once_target + max(1.0, again / once)
            self._once_target = min(grown, float(self._blocks_max))
            self._again[key] = None
        elif self._left_again.take(key):
            self._once_target = max(0.0, self._once_target - max(1.0, once / again))
            self._again[key] = None
        else:
            self._once[key] = None
        if self._learns_max:
            self._blocks_max = max(self._blocks_max, len(self))

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        for key in reversed(list(keys)):
            if key in self._once:
                del self._once[key]
                self._again[key] = None
            elif key in self._again:
                self._again.move_to_end(key)

    def victim(self, now_s: float) -> K | None:
        from_once = self._once and (len(self._once) > self._once_target or not self._again)
        return next(iter(self._once if from_once else self._again), None)

    def remove(self, key: K) -> None:
        if key in self._once:
            del self._once[key]
            self._left_once.add(key)
        else:
            del self._again[key]
            self._left_again.add(key)
        self._left_once.trim(self._blocks_max - len(self._once))
        self._left_again.trim(2 * self._blocks_max - len(self) - len(self._left_once))

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def __contains__(self, key: object) -> bool:
        return key in self._once or key in self._again
