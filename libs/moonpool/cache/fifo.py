"""First in, first out: the oldest goes, however often it was used. Here for comparison."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from moonpool.cache.base import NO_HINT, BlockHint

K = TypeVar("K", bound=Hashable)


class FifoPolicy(Generic[K]):
    """An `EvictionPolicy`. Every operation takes constant time."""

    def __init__(self) -> None:
        self._order: OrderedDict[K, None] = OrderedDict()  # the next to go stands first

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self._order:
            raise KeyError(key)
        self._order[key] = None

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        """Uses do not count."""

    def victim(self, now_s: float) -> K | None:
        return next(iter(self._order), None)

    def remove(self, key: K) -> None:
        del self._order[key]

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._order
