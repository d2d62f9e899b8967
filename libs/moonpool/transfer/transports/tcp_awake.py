"""Taking in what is large from a process of the same host, awake for as long as it keeps coming.

A receiver is as fast as its sender there. If it sleeps for what comes next it is put to sleep and
woken for every piece, and to wake it costs the sender as much time as to send some. Over a network
bytes come more slowly than they are taken in, and the kernel gathers them while we sleep.
"""

import os
import socket
import ssl
import time

from moonpool.transfer.lookout import HELD_UP_S, Lookout, Watch
from moonpool.transfer.vectored import StreamBroken, Vector

PIECE_S = 40e-6  # a few times what passes between pieces; then their sender has no CPU
PLAIN_S = 0.25  # after a piece for which we were held up: each may be held up now


def is_near(sock: socket.socket) -> bool:
    """Whether the other end is on this host, and may be read from without waiting. Raises
    OSError."""
    if isinstance(sock, ssl.SSLSocket):
        return False
    ours, theirs = sock.getsockname(), sock.getpeername()
    return bool(ours[0] == theirs[0])


class Lookouts:
    """Of one engine. Streams that move much crowd a small machine for as long as they do; what is
    small is not looked for any less for it."""

    def __init__(self, enabled: bool = True) -> None:
        self.small = Lookout(enabled)
        self.bulk = Lookout(enabled)
        self.flows = Flows(len(os.sched_getaffinity(0)) // 2)  # a CPU each for both of its ends

    def stats(self) -> dict[str, float]:
        bulk = self.bulk.stats()
        return {
            **self.small.stats(),
            **{f"bulk_{name}": bulk[name] for name in ("looks", "looks_seen", "look_rests")},
        }

    def close(self) -> None:
        self.small.close()
        self.bulk.close()


class Flows:
    """Much that is taken in at the moment. Thread-safe."""

    def __init__(self, awake_max: int) -> None:
        """Beyond `awake_max` they need the CPUs more than those who are awake."""
        self._awake_max = awake_max
        self._under_way: set[object] = set()

    def begin(self, flow: object) -> None:
        self._under_way.add(flow)

    def end(self, flow: object) -> None:
        self._under_way.discard(flow)

    @property
    def may_stay(self) -> bool:
        """Whether those under way may be awake between their pieces."""
        return len(self._under_way) <= self._awake_max


class Intake:
    """Of one stream; used by one thread."""

    def __init__(self, vector: Vector, lookout: Lookout, flows: Flows | None = None) -> None:
        """`flows`: that what is taken in here counts among; None: it is too little to count."""
        self._vector = vector
        self.watch = Watch(lookout)  # for what comes first
        self._pieces = Watch(lookout, PIECE_S)
        self._flows = flows or Flows(1)
        self._whole = False
        self._seen_bytes = 0
        self._plain_until_s = 0.0

    def fill(self, sock: socket.socket, *, begun: bool) -> None:
        """Fills the vector, of which something has come if it has `begun`. Raises StreamBroken."""
        self._whole, self._seen_bytes = False, self._vector.moved_bytes
        pieces = self._pieces
        self._flows.begin(self)
        try:
            if not begun and self._may_stay and not self.look(sock):
                _sleep(sock)
                self.watch.came()
            while not self._whole and self._may_stay and pieces.stay(lambda: self._glance(sock)):
                pass
            self._vector.receive(sock.fileno())  # nothing is left of a vector that is full
        finally:
            self._flows.end(self)

    @property
    def _may_stay(self) -> bool:
        return self._flows.may_stay and time.perf_counter() >= self._plain_until_s

    def look(self, sock: socket.socket) -> bool:
        """Takes what comes first; False when a look for it was not likely to pay, or did not."""
        if not self.watch.look(lambda: self._glance(sock)):
            return False
        self.watch.came()
        return True

    def _glance(self, sock: socket.socket) -> bool:
        """Takes a piece. False as well when that took so long that the CPU or the GIL must have
        been another's: then one long call without the GIL is better than many."""
        vector, start_s = self._vector, time.perf_counter()
        self._whole = vector.try_receive(sock.fileno(), once=True)
        if self._whole:
            return True
        if time.perf_counter() - start_s > HELD_UP_S:
            self._plain_until_s = start_s + PLAIN_S
            return False
        came = vector.moved_bytes > self._seen_bytes
        self._seen_bytes = vector.moved_bytes
        return came


def _sleep(sock: socket.socket) -> None:
    """Sleeps until there is something, or the end, to be read. Raises StreamBroken."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except OSError as error:
        raise StreamBroken(error.errno, error.strerror) from error
