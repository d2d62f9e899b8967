"""The clock of tests and simulations: time stands still until it is advanced."""

import asyncio
import heapq
from itertools import count

# Passes over the event loop that let a woken task and those waiting for it run until they sleep
# again. Each `await` hop between tasks takes one pass.
SETTLE_PASSES = 24


class VirtualClock:
    """Sleepers wake in the order of their deadlines, equal ones in the order of their calls."""

    def __init__(self, start_s: float = 0.0, unix_start_s: float = 1_700_000_000.0) -> None:
        self._now = start_s
        self._unix_offset = unix_start_s - start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> float:
        return self._now

    def unix(self) -> float:
        return self._now + self._unix_offset

    async def sleep(self, seconds: float) -> None:
        """Returns when `advance` has reached the deadline. Cancellable; nothing is held."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Moves time on by `seconds`, stopping at every deadline on the way: who wakes there runs
        (and may sleep anew) before time goes on. ValueError on a negative amount."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        target = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            deadline, _, woken = heapq.heappop(self._sleepers)
            if woken.done():  # its sleeper was cancelled
                continue
            self._now = max(self._now, deadline)
            woken.set_result(None)
            await self._settle()
        self._now = target

    def next_deadline(self) -> float | None:
        """When the next sleeper wakes; None when nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def stats(self) -> dict[str, int]:
        return {"sleepers": sum(not woken.done() for _, _, woken in self._sleepers)}

    async def _settle(self) -> None:
        for _ in range(SETTLE_PASSES):
            await asyncio.sleep(0)
