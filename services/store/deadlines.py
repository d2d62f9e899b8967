"""Things that run out: added and removed in constant time, found within a tenth of a second."""

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

STEP_S = 0.1


class Deadlines(Generic[T]):
    """Items with a time each. An item is due no earlier than its time, and at most a step later."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[T, None]] = {}
        self._order: list[int] = []  # heap of the keys of _slots

    def add(self, item: T, at_s: float) -> None:
        slot = _slot(at_s)
        if slot not in self._slots:
            self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        self._slots[slot][item] = None

    def remove(self, item: T, at_s: float) -> None:
        """`at_s` as it was added. KeyError when it is not there."""
        del self._slots[_slot(at_s)][item]

    def pop_due(self, now_s: float) -> list[T]:
        """Takes out and returns what has run out."""
        due: list[T] = []
        while self._order and self._order[0] * STEP_S <= now_s:
            due.extend(self._slots.pop(heapq.heappop(self._order)))
        return due

    def __len__(self) -> int:
        return sum(len(items) for items in self._slots.values())


def _slot(at_s: float) -> int:
    return math.ceil(at_s / STEP_S)
