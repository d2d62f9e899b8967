"""Threads that copy. They are shared by all peers, because a memcpy never waits for one."""

import threading
import time
from collections.abc import Callable

from moonpool.transfer.base import Priority
from moonpool.transfer.lanes import Lanes

Work = Callable[[], None]


class CopyPool:
    """At most `threads_max` threads, started when there is work for them. `put` never blocks; what
    waits is bounded by the engine's limit on slices."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._lanes: Lanes[Work] = Lanes()
        self._ready = threading.Condition()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    def put(self, work: Work, priority: Priority) -> None:
        """`work` must not raise."""
        with self._ready:
            self._lanes.put(work, priority, time.monotonic())
            if self._idle:
                self._ready.notify()
            elif len(self._threads) < self._threads_max:
                self._spawn()

    def _spawn(self) -> None:
        name = f"moonpool-copy-{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()

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
        return len(self._lanes)

    def close(self) -> list[threading.Thread]:
        """Threads end when nothing waits any more; the caller joins them."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        return self._threads
