"""The eviction seam: who goes first when a tier is full. Pure; time is handed in."""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from moonpool.kv.hint import NO_HINT, BlockHint

__all__ = ["NO_HINT", "BlockHint", "EvictionPolicy"]

K = TypeVar("K")


class EvictionPolicy(Protocol, Generic[K]):
    """An order over the keys that may be evicted. The owner keeps the bytes; the policy only an
    order. `victim` looks, `remove` forgets: asking twice gives the same answer."""

    def insert(self, key: K, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        """A key that was not there. KeyError when it is."""

    def touch(self, keys: Iterable[K], now_s: float, hint: BlockHint = NO_HINT) -> None:
        """A use of a run of blocks, given head first; unknown keys are ignored."""

    def victim(self, now_s: float) -> K | None:
        """Who would go now; None when empty."""

    def remove(self, key: K) -> None:
        """Forget it (evicted, or in use and so not evictable). KeyError when unknown."""

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...
