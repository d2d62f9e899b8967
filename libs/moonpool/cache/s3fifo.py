"""S3-FIFO: a small queue for newcomers, a main one, and a memory of who left the small one.

    insert: remembered -> main, else -> small
    evict:  small over its share -> its oldest: used twice -> main, else out, and remembered
            else main's oldest: used -> once round again, else out

Here for comparison: on blocks of chats in steady state it loses to LRU.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from moonpool.cache.base import NO_HINT, BlockHint
from moonpool.cache.ghosts import Ghosts

K = TypeVar("K", bound=Hashable)

USES_MAX = 3  # counted per key
PROMOTE_USES = 2  # uses in the small queue that earn a place in the main one


class S3FifoPolicy(Generic[K]):
    """An `EvictionPolicy`. Constant time per key, amortised over uses. `blocks_max` is how many it
    will hold; 0: the most it has held yet."""

    def __init__(self, blocks_max: int = 0, small_share: float = 0.1) -> None:
        self._blocks_max = blocks_max
        self._learns_max = blocks_max == 0
        self._small_share = small_share
        self._small: OrderedDict[K, None] = OrderedDict()  # oldest first
        self._main: OrderedDict[K, None] = OrderedDict()
        self._uses: dict[K, int] = {}  # 0..USES_MAX, of all keys held
        self._ghosts: Ghosts[K] = Ghosts()

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self._uses:
            raise KeyError(key)
        (self._main if self._ghosts.take(key) else self._small)[key] = None
        self._uses[key] = 0
        if self._learns_max:
            self._blocks_max = max(self._blocks_max, len(self._uses))

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        for key in keys:
            uses = self._uses.get(key)
            if uses is not None and uses < USES_MAX:
                self._uses[key] = uses + 1

    def victim(self, now_s: float) -> K | None:
        small, main, uses = self._small, self._main, self._uses
        small_max = self._blocks_max * self._small_share
        while small and (len(small) > small_max or not main):
            key = next(iter(small))
            if uses[key] < PROMOTE_USES:
                return key
            del small[key]
            main[key] = None
            uses[key] = 0
        while main:
            key = next(iter(main))
            if not uses[key]:
                return key
            uses[key] -= 1
            main.move_to_end(key)
        return None

    def remove(self, key: K) -> None:
        del self._uses[key]
        if key in self._small:
            del self._small[key]
            self._ghosts.add(key)
            self._ghosts.trim(int(self._blocks_max * (1 - self._small_share)) + 1)
        else:
            del self._main[key]

    def __len__(self) -> int:
        return len(self._uses)

    def __contains__(self, key: object) -> bool:
        return key in self._uses
