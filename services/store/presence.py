"""Whether this node was away without knowing it: stopped, swapped out, or cut off. Then it may hold
names that others have changed meanwhile, and does not answer for any before it has asked."""

import asyncio
from collections.abc import Callable

AWAY_S = 0.7  # between two looks; others give a silent node up after 0.8 s
PASS_MAX_S = 2.5  # a question waits no longer for us to be sure


class Presence:
    """One per node; belongs to its loop. Whoever answers looks first: `is_away`."""

    def __init__(self) -> None:
        self.epoch = 0  # one more with each absence: what began before it does not end after it
        self.wanted = asyncio.Event()  # somebody is to ask the others
        self.is_alone: Callable[[], bool] = lambda: True  # nobody could know better
        self._seen_s = float("inf")
        self._away = False
        self._cut = False
        self._here = asyncio.Event()
        self._here.set()

    def is_away(self, now_s: float) -> bool:
        """For whoever comes over a line."""
        if now_s - self._seen_s > AWAY_S:
            self.leave()
        self._seen_s = now_s
        return self._away

    def is_away_on_bus(self, now_s: float) -> bool:
        """For who comes over the bus: what comes there when we were cut off is the first sign that
        we no longer are."""
        if self._cut:
            self._cut = False
            self.leave()
        return self.is_away(now_s)

    def look(self, now_s: float, *, is_connected: bool) -> None:
        """Several times within `AWAY_S`."""
        if self._cut and is_connected:
            self._cut = False
            self.leave()
        self._cut |= not is_connected
        self.is_away(now_s)

    def leave(self) -> None:
        """We may have missed something."""
        if not self.is_alone():
            self.epoch += 1
            self._away = True
            self._here.clear()
            self.wanted.set()

    def back(self, epoch: int) -> None:
        """All was heard that was missed before `epoch` ended."""
        if epoch == self.epoch:
            self._away = False
            self._here.set()

    async def wait(self) -> None:
        """Until we are back, but not for ever."""
        try:
            async with asyncio.timeout(PASS_MAX_S):
                await self._here.wait()
        except TimeoutError:
            return
