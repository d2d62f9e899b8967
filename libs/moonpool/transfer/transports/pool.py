"""Who copies: threads, shared by all peers because a memcpy never waits for one, and the event
loop, which lends a hand.

Waking a thread costs as much as copying a MiB, so what is urgent begins on the loop at once, a step
at a time with everything else of the loop in between; threads take what is behind it.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

from moonpool.transfer.base import Priority
from moonpool.transfer.lanes import Lanes


class Work(Protocol):
    @property
    def in_steps(self) -> bool:
        """Whether it may be done on the loop."""

    def run(self) -> None:
        """All of it, on a thread. Must not raise."""

    def step(self) -> bool:
        """A part of it, on the loop; True when there is more. Must not raise."""


class Whole:
    """Work for a thread only."""

    in_steps = False

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    def step(self) -> bool:
        raise AssertionError("it has no steps")


class CopyPool:
    """At most `threads_max` threads, started when there is work for them. Belongs to the loop.
    `put` never blocks; what waits is bounded by the engine's limit on slices."""

    def __init__(self, name: str, threads_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._threads_max = threads_max
        self._loop = loop
        self._in_hand: Work | None = None  # of the loop
        self._lanes: Lanes[Work] = Lanes()
        self._ready = threading.Condition()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    def put(self, work: Work, priority: Priority) -> None:
        if self._in_hand is None and priority is Priority.FOREGROUND and work.in_steps:
            self._in_hand = work
            self._loop.call_soon(self._lend_a_hand)
            return
        with self._ready:
            self._lanes.put(work, priority, time.monotonic())
            if self._idle:
                self._ready.notify()
            elif len(self._threads) < self._threads_max:
                self._spawn()

    # On the loop.

    def _lend_a_hand(self) -> None:
        work = self._in_hand
        if work is None:
            return
        if not work.step():
            self._in_hand = self._next_in_hand()
        if self._in_hand is not None:
            self._loop.call_soon(self._lend_a_hand)

    def _next_in_hand(self) -> Work | None:
        with self._ready:
            now_s = time.monotonic()
            work = self._lanes.take_foreground(now_s)
            if work is not None and not work.in_steps:
                self._lanes.put_back(work, Priority.FOREGROUND, now_s)
                return None
            return work

    # On a thread.

    def _spawn(self) -> None:
        name = f"moonpool-copy-{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work.run()

    def _next(self) -> Work | None:
        with self._ready:
            while (work := self._lanes.take(time.monotonic())) is None:
                if self._closed:
                    return None
                self._idle += 1
                self._ready.wait()
                self._idle -= 1
            return work

    @property
    def waiting(self) -> int:
        return len(self._lanes) + (self._in_hand is not None)

    def close(self) -> list[threading.Thread]:
        """Everything that waits was stopped before, and ends at once. Threads end when nothing
        waits any more; the caller joins them."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        while self._in_hand is not None:
            if not self._in_hand.step():
                self._in_hand = self._next_in_hand()
        return self._threads
