"""The eviction seam: who goes first when a tier is full. Pure; time is handed in."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class BlockHint:
    """What an owner may know of blocks beyond their keys. Most policies ignore it; all work
    without."""

    run_blocks: int = 0  # blocks of the prompt that uses them; 0: unknown
    partial: bool = False  # a prompt ended inside the block: only the very same prompt reuses it


NO_HINT = BlockHint()


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
