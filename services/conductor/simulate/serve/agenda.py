"""The agenda: what happens when, on virtual time. Equal times keep the order they were noted in."""

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """A heap of calls."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done = 0  # calls made
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._noted = 0

    def at(self, when_s: float, call: Callable[..., None], *args: Any) -> None:
        """`call(*args)` at `when_s`, or now if that is over."""
        self._noted += 1
        when_s = max(when_s, self.now_s)
        heapq.heappush(self._heap, (when_s, self._noted, call, args))

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now_s + seconds, call, *args)

    def step(self) -> bool:
        """Makes the next call; False when nothing is left."""
        if not self._heap:
            return False
        self.now_s, _, call, args = heapq.heappop(self._heap)
        call(*args)
        self.done += 1
        return True
