"""What nobody waits for: it goes when nothing urgent is under way, to whichever peer that is.

What a transport has begun can no longer be overtaken, so background slices are small, and few are
with each path at a time; the rest waits here. While the foreground moves, only what waited for long
goes, and no more of it than a fifth of all bytes.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from moonpool.transfer.base import Priority
from moonpool.transfer.job import Job
from moonpool.transfer.transports.base import Path

WINDOW_BYTES = 6 << 20  # with one way of a path: two move, and one is ready for when one ends
WINDOW_SLICES = 32
PROMOTE_S = 0.1  # after which one goes all the same while the foreground moves
SHARE = 4  # times its bytes that the foreground moves before another does, or `PROMOTE_S`
STUCK_S = 1.0  # a foreground of which nothing ends for so long is not slowed down by anybody
BURST = 32  # slices begun before others on the loop have their turn

T = TypeVar("T")
P = TypeVar("P")


class Turns(Generic[T, P]):
    """Which slice goes next. Pure. Paths have their turn one after the other."""

    def __init__(self) -> None:
        self._waiting: dict[P, dict[T, tuple[int, float]]] = {}  # bytes, since when
        self._flying: dict[T, tuple[P, int]] = {}
        self._on: dict[P, list[int]] = {}  # slices and bytes under way
        self._by_item: dict[T, P] = {}  # of those that wait
        self._went_s = 0.0  # when the last one went
        self._moved_s = 0.0  # when the foreground last did
        self._owed_bytes = 0  # that the foreground is to move before another goes

    @property
    def waiting(self) -> int:
        return len(self._by_item)

    def flies(self, item: T) -> bool:
        return item in self._flying

    def put(self, item: T, path: P, size_bytes: int, now_s: float) -> None:
        if not self._by_item and not self._flying:  # nobody said until now what has moved
            self._moved_s = now_s
        self._waiting.setdefault(path, {})[item] = (size_bytes, now_s)
        self._by_item[item] = path

    def go_at_once(self, item: T, path: P, ways: int, size_bytes: int, now_s: float) -> bool:
        """In place of `put` and `take` where nothing waits and nothing is urgent. False: `put`."""
        if self._by_item or not self._has_room(path, ways):
            return False
        self._moved_s = now_s
        self._fly(item, path, size_bytes, now_s)
        return True

    def moved(self, size_bytes: int, now_s: float) -> bool:
        """A slice of the foreground has ended, or one has come. Whether it has had its share."""
        self._moved_s = now_s
        self._owed_bytes -= size_bytes
        return self._owed_bytes <= 0

    def take(self, now_s: float, foreground: int, ways: Callable[[P], int]) -> tuple[T, P] | None:
        """The next slice, if one may go: `foreground` slices are under way."""
        if self.wait_s(now_s, foreground) > 0:
            return None
        for path, items in self._waiting.items():
            if self._has_room(path, ways(path)):
                item = next(iter(items))
                size_bytes, _ = items[item]
                self._forget(item)
                if path in self._waiting:
                    self._waiting[path] = self._waiting.pop(path)  # behind the others
                self._fly(item, path, size_bytes, now_s)
                return item, path
        return None

    def _fly(self, item: T, path: P, size_bytes: int, now_s: float) -> None:
        self._went_s, self._owed_bytes = now_s, SHARE * size_bytes
        self._flying[item] = (path, size_bytes)
        on = self._on.setdefault(path, [0, 0])
        on[0] += 1
        on[1] += size_bytes

    def wait_s(self, now_s: float, foreground: int) -> float:
        """For how long nothing may go, for the foreground's sake; less if that moves its share."""
        if not foreground or not self._waiting:
            return 0.0
        oldest_s = min(next(iter(items.values()))[1] for items in self._waiting.values())
        if self._owed_bytes > 0:
            oldest_s = max(oldest_s, self._went_s)
        return min(oldest_s + PROMOTE_S, self._moved_s + STUCK_S) - now_s

    def ended(self, item: T) -> None:
        """It is over, or nobody wants it any more."""
        if item in self._by_item:
            self._forget(item)
            return
        if item not in self._flying:
            return
        path, size_bytes = self._flying.pop(item)
        on = self._on[path]
        on[0] -= 1
        on[1] -= size_bytes
        if not on[0]:
            del self._on[path]

    def _has_room(self, path: P, ways: int) -> bool:
        on = self._on.get(path)
        return on is None or (on[0] < WINDOW_SLICES * ways and on[1] < WINDOW_BYTES * ways)

    def _forget(self, item: T) -> None:
        path = self._by_item.pop(item)
        items = self._waiting[path]
        del items[item]
        if not items:
            del self._waiting[path]


class Background:
    """Of one engine, on its loop."""

    def __init__(self, jobs: Collection[Job], go: Callable[[Job, Path], None]) -> None:
        """`jobs`: all of the engine, as they are at any moment; `go` gives one to its path."""
        self._jobs = jobs
        self._go = go
        self._loop = asyncio.get_running_loop()
        self.mine: set[Job] = set()  # of the engine's jobs; always this very set
        self._turns: Turns[Job, Path] = Turns()
        self._again: asyncio.Handle | None = None
        self._pumping = False

    @property
    def waiting(self) -> int:
        return self._turns.waiting

    def expect(self, jobs: Collection[Job], priority: Priority) -> None:
        """They are the engine's now, and will be started. Not called for the foreground where there
        is no background."""
        if priority is Priority.BACKGROUND:
            self.mine.update(jobs)
        else:
            self._turns.moved(0, time.monotonic())

    def start(self, job: Job, path: Path) -> None:
        """Gives it to the path when its turn comes; at once if it had one before."""
        if self._turns.flies(job):
            self._go(job, path)
            return
        now_s, size_bytes = time.monotonic(), job.slice.payload
        if not self._foreground and self._turns.go_at_once(job, path, path.ways, size_bytes, now_s):
            self._go(job, path)
            return
        self._turns.put(job, path, size_bytes, now_s)
        self._pump()

    def ended(self, job: Job) -> None:
        """A job is none of the engine's any more, of whichever priority."""
        if job in self.mine:
            self.mine.remove(job)
            self._turns.ended(job)
        else:
            earned = self._turns.moved(job.slice.payload, time.monotonic())
            if self._foreground and not earned:
                return  # the timer runs, if anything waits
        if self._turns.waiting:
            self._pump_in(0.0)  # whoever waited for the job comes first

    @property
    def _foreground(self) -> int:
        return len(self._jobs) - len(self.mine)

    def _pump(self) -> None:
        if self._pumping or not self._turns.waiting:
            return
        self._pumping = True
        try:
            for _ in range(BURST):
                now_s = time.monotonic()
                taken = self._turns.take(now_s, self._foreground, _ways)
                if taken is None:
                    wait_s = self._turns.wait_s(now_s, self._foreground)
                    if wait_s > 0:
                        self._pump_in(wait_s)
                    return
                self._go(*taken)
            self._pump_in(0.0)
        finally:
            self._pumping = False

    def _pump_in(self, wait_s: float) -> None:
        if self._again is not None:
            self._again.cancel()
        if wait_s > 0:
            self._again = self._loop.call_later(wait_s, self._pump)
        else:
            self._again = self._loop.call_soon(self._pump)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()


def _ways(path: Path) -> int:
    return path.ways
