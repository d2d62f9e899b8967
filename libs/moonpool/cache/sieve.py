"""SIEVE: first in, first out, but a hand spares once whatever was used since it last came by.

The queue is kept in two parts, split at the hand: what it has still to look at (`_ahead`, the
oldest first) and what it spared on this round (`_behind`). New keys join the far end of `_ahead`.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from moonpool.cache.base import NO_HINT, BlockHint

K = TypeVar("K", bound=Hashable)


class SievePolicy(Generic[K]):
    """An `EvictionPolicy`. Constant time per key, amortised over uses."""

    def __init__(self) -> None:
        self._ahead: OrderedDict[K, None] = OrderedDict()
        self._behind: OrderedDict[K, None] = OrderedDict()
        self._used: set[K] = set()  # since the hand last came by

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self:
            raise KeyError(key)
        self._ahead[key] = None

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        self._used.update(key for key in keys if key in self)

    def victim(self, now_s: float) -> K | None:
        while self._ahead or self._behind:
            if not self._ahead:
                self._ahead, self._behind = self._behind, self._ahead
            key = next(iter(self._ahead))
            if key not in self._used:
                return key
            self._used.remove(key)
            del self._ahead[key]
            self._behind[key] = None
        return None

    def remove(self, key: K) -> None:
        del (self._ahead if key in self._ahead else self._behind)[key]
        self._used.discard(key)

    def __len__(self) -> int:
        return len(self._ahead) + len(self._behind)

    def __contains__(self, key: object) -> bool:
        return key in self._ahead or key in self._behind
