"""Ends the process when a step of the engine hangs: a device that never answers cannot be mended
from inside, and a dead instance is replaced at once where a silent one would be waited for."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICK_S = 1.0


class Watchdog:
    """Counts its own turns, not seconds, so that a process which was paused as a whole is not taken
    for one whose engine hangs."""

    def __init__(self, ticks_max: int, give_up: Callable[[str], None]) -> None:
        """`give_up` is told why, at most once."""
        assert ticks_max > 0
        self._ticks_max = ticks_max
        self._give_up = give_up
        self._step = 0  # of the step under way; 0: none
        self._numbers = itertools.count(1)
        self._seen = 0  # the step of the last tick
        self._ticks = 0  # 0 <= ticks <= ticks_max, during that step

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around each step."""
        self._step = next(self._numbers)
        try:
            yield
        finally:
            self._step = 0

    def tick(self) -> None:
        if self._step == 0 or self._step != self._seen:
            self._seen, self._ticks = self._step, 0
            return
        if self._ticks == self._ticks_max:
            return
        self._ticks += 1
        if self._ticks == self._ticks_max:
            self._give_up(f"a step of the engine did not end within {self._ticks_max * TICK_S:g} s")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()
