"""Taking in what is large from a process of the same host, awake for as long as it keeps coming.

A receiver is as fast as its sender there. If it sleeps for what comes next it is put to sleep and
woken for every piece, and to wake it costs the sender as much time as to send some. Over a network
bytes come more slowly than they are taken in, and the kernel gathers them while we sleep.
"""

import socket
import ssl
import time

from moonpool.transfer.lookout import HELD_UP_S, Watch
from moonpool.transfer.vectored import Vector


def is_near(sock: socket.socket) -> bool:
    """Whether the other end is on this host, and may be read from without waiting. Raises
    OSError."""
    if isinstance(sock, ssl.SSLSocket):
        return False
    ours, theirs = sock.getsockname(), sock.getpeername()
    return bool(ours[0] == theirs[0])


class Intake:
    """Of one stream; used by one thread."""

    def __init__(self, vector: Vector, watch: Watch) -> None:
        self._vector = vector
        self._watch = watch
        self._whole = False
        self._seen_bytes = 0

    def fill(self, fd: int) -> None:
        """Fills the vector, whose first bytes are there or on their way. Raises StreamBroken."""
        self._whole, self._seen_bytes = False, self._vector.moved_bytes
        while self._watch.stay(lambda: self._glance(fd)):
            if self._whole:
                return
        self._vector.receive(fd)  # nothing is left of a vector that is full

    def look(self, fd: int) -> bool:
        """Whether the first bytes have come, if a look for them was likely to pay."""
        self._whole, self._seen_bytes = False, self._vector.moved_bytes
        return self._watch.look(lambda: self._glance(fd))

    def _glance(self, fd: int) -> bool:
        """Takes a piece. False as well when that took so long that the CPU or the GIL must have
        been another's: then one long call without the GIL is better than many."""
        vector, start_s = self._vector, time.perf_counter()
        self._whole = vector.try_receive(fd, once=True)
        if self._whole:
            return True
        came = vector.moved_bytes > self._seen_bytes
        self._seen_bytes = vector.moved_bytes
        return came and time.perf_counter() - start_s <= HELD_UP_S
