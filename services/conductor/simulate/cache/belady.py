"""Belady's optimum: whoever is used again last goes first. It knows the future, so it exists only
here; of one prompt's blocks the tail goes first."""

from collections.abc import Iterable
from heapq import heappop, heappush

from moonpool.cache import NO_HINT, BlockHint
from services.conductor.simulate.cache.trace import Request


class BeladyPolicy:
    """An `EvictionPolicy` over a trace that is known in advance and replayed in order: `insert`s
    and `touch`es must be those of its requests."""

    def __init__(self, requests: Iterable[Request]) -> None:
        uses: dict[int, list[int]] = {}
        count = 0
        for request in requests:
            for block in request.blocks:
                uses.setdefault(block, []).append(count)
                count += 1
        for numbers in uses.values():
            numbers.reverse()
        self._uses = uses  # of each block its uses to come, the next one last
        self._never = count
        self._heap: list[tuple[int, int]] = []  # (-next use, block); outdated ones are skipped
        self._next: dict[int, int] = {}

    def insert(self, key: int, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT) -> None:
        if key in self._next:
            raise KeyError(key)
        self._use(key)

    def touch(self, keys: Iterable[int], now_s: float, hint: BlockHint = NO_HINT) -> None:
        for key in keys:
            if key in self._next:
                self._use(key)

    def victim(self, now_s: float) -> int | None:
        while self._heap:
            negative, key = self._heap[0]
            if self._next.get(key) == -negative:
                return key
            heappop(self._heap)
        return None

    def remove(self, key: int) -> None:
        del self._next[key]

    def __len__(self) -> int:
        return len(self._next)

    def __contains__(self, key: object) -> bool:
        return key in self._next

    def _use(self, key: int) -> None:
        uses = self._uses[key]
        uses.pop()
        self._next[key] = uses[-1] if uses else self._never
        heappush(self._heap, (-self._next[key], key))
