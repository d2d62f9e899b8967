"""Keys that were there once: what policies remember of those that left."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Ghosts(Generic[K]):
    """The keys that left last, oldest first, cut to a length by whoever owns it."""

    def __init__(self) -> None:
        self._order: OrderedDict[K, None] = OrderedDict()

    def add(self, key: K) -> None:
        self._order[key] = None
        self._order.move_to_end(key)

    def take(self, key: K) -> bool:
        """True, and it is forgotten, when it was here."""
        if key not in self._order:
            return False
        del self._order[key]
        return True

    def trim(self, length: int) -> None:
        while len(self._order) > max(length, 0):
            self._order.popitem(last=False)

    def __len__(self) -> int:
        return len(self._order)
