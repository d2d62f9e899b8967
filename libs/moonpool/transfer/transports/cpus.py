"""Two threads of one host that hand much to one another, on CPUs of their own.

A kernel likes to wake a thread on the CPU that it was called from. On a small machine it may leave
both there while another CPU idles: what they could do side by side they do one by one.
"""

import contextlib
import ctypes
import os
import socket
import time
from collections.abc import Callable

from moonpool.transfer.lookout import Lookout

MUCH_BYTES = 256 << 10  # in one frame: below, nobody takes a seat
SMALL_CPUS = 4  # with more, a kernel finds one that idles, and knows better than we
HOLD_S = 1.0  # then the kernel may choose anew
REST_S = 0.1  # after a look at a machine whose CPUs are all taken

_current_cpu = ctypes.CDLL(None).sched_getcpu


class Seat:
    """Where one thread runs; used by it alone. Of two, the one stays and the other leaves."""

    def __init__(
        self,
        lookout: Lookout,
        *,
        now: Callable[[], float] = time.monotonic,
        current: Callable[[], int] = _current_cpu,
        allowed: Callable[[], set[int]] = lambda: os.sched_getaffinity(0),
        bind: Callable[[set[int]], None] = lambda cpus: os.sched_setaffinity(0, cpus),
    ) -> None:
        """`lookout`: knows whether CPUs are free; nobody takes a seat where it is off."""
        self._lookout = lookout
        self._now = now
        self._current = current
        self._allowed = allowed
        self._bind = bind
        self._home: set[int] = set()  # where the thread may run when it has no seat
        self._until_s = 0.0  # of the seat
        self._rests_until_s = 0.0

    def stay(self) -> None:
        """For a while the thread is not drawn to the CPU of whoever it speaks with."""
        now_s = self._now()
        if now_s >= self._until_s and now_s >= self._rests_until_s:
            self._take(now_s, lambda home: {self._current()})

    def leave(self, sock: socket.socket) -> None:
        """For a while the thread does not run where what came last on `sock` was sent."""
        now_s = self._now()
        sender = sock.getsockopt(socket.SOL_SOCKET, socket.SO_INCOMING_CPU)
        if sender == self._current():
            if now_s >= self._rests_until_s:
                self._take(now_s, lambda home: home - {sender})
        elif now_s >= self._until_s:
            self.rise()

    def pause(self) -> None:
        """Nothing much is to be done: a seat that was held for long is given up."""
        if self._home and self._now() >= self._until_s:
            self.rise()

    def rise(self) -> None:
        """The thread may run wherever it could before. Idempotent."""
        if self._home:
            with contextlib.suppress(OSError):  # they were taken from us meanwhile
                self._bind(self._home)
            self._home = set()
            self._until_s = 0.0

    def _take(self, now_s: float, choose: Callable[[set[int]], set[int]]) -> None:
        self.rise()
        home = self._allowed()
        if not 2 <= len(home) <= SMALL_CPUS or self._lookout.is_crowded:
            self._rests_until_s = now_s + REST_S
            return
        with contextlib.suppress(OSError):
            self._bind(choose(home))
            self._home = home
            self._until_s = now_s + HOLD_S
