"""Who a tcp owner serves at the moment, and who goes when there is no room for another.

To know an epoch is enough to be greeted. Room is for those who hold a capability: a stream that
shows none has little time, and is the first to go; then comes whoever was idle for longest.
"""

import socket
import threading

from moonpool.transfer import vectored

STREAMS_MAX = 512
HELLO_S = 5.0  # for a stream to be greeted and named
PROOF_S = 60.0  # for it to show a capability; peers end streams that are idle for half of that
IDLE_MIN_S = 1.0  # of one that has shown one, before it must make room


class Guest:
    """One stream that is served. All but `gone` is written by its own thread."""

    __slots__ = ("gone", "idle_since_s", "named", "proven", "since_s", "sock")

    def __init__(self, sock: socket.socket, now_s: float) -> None:
        self.sock = sock  # or the tls one around it
        self.since_s = now_s
        self.named = False
        self.proven = False  # it has shown a capability of ours
        self.idle_since_s = 0.0  # 0: a frame is under way
        self.gone = False  # it must end, or is no stream of frames any more

    @property
    def due_s(self) -> float:
        """When it must have got further."""
        if self.proven:
            return float("inf")
        return self.since_s + (PROOF_S if self.named else HELLO_S)


class Guests:
    """Thread-safe. Whoever must go is shut down under its thread, which then calls `leave`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guests: dict[Guest, None] = {}  # in the order in which they came
        self._due_s = float("inf")  # no later than the first of theirs
        self._closed = False
        self.made_room = 0

    def __len__(self) -> int:
        return len(self._guests)

    def admit(self, sock: socket.socket, now_s: float) -> Guest | None:
        """None when all the room is taken by who is at work, or it is closed."""
        with self._lock:
            if self._closed or (len(self._guests) >= STREAMS_MAX and not self._make_room(now_s)):
                return None
            guest = Guest(sock, now_s)
            self._guests[guest] = None
            self._due_s = min(self._due_s, guest.due_s)
            return guest

    def _make_room(self, now_s: float) -> bool:
        """With the lock held. False when nobody can be asked to go."""
        oldest = next((guest for guest in self._guests if not guest.proven), None)
        if oldest is None:
            idle = [guest for guest in self._guests if guest.idle_since_s]
            oldest = min(idle, key=lambda guest: guest.idle_since_s or now_s, default=None)
            if oldest is None or now_s - (oldest.idle_since_s or now_s) < IDLE_MIN_S:
                return False
        self._end(oldest)
        self.made_room += 1
        return True

    def _end(self, guest: Guest) -> None:
        guest.gone = True
        del self._guests[guest]
        vectored.shut(guest.sock)

    def wrapped(self, guest: Guest, sock: socket.socket) -> None:
        """It speaks tls from now on."""
        with self._lock:
            guest.sock = sock
            if guest.gone:
                vectored.shut(sock)

    def hand_over(self, guest: Guest) -> bool:
        """It becomes another's, and no rule here is for it any more. False: it must end."""
        with self._lock:
            if guest.gone:
                return False
            guest.gone = True
            del self._guests[guest]
            return True

    def leave(self, guest: Guest) -> None:
        """Its thread is about to end, and closes the socket. Idempotent."""
        with self._lock:
            guest.gone = True
            self._guests.pop(guest, None)

    def due_in_s(self, now_s: float) -> float | None:
        """When to `sweep`, now if below 0; None: not before another was admitted."""
        return None if self._due_s == float("inf") else self._due_s - now_s

    def sweep(self, now_s: float) -> int:
        """Ends those whose time is up; how many they were."""
        with self._lock:
            late = [guest for guest in self._guests if guest.due_s <= now_s]
            for guest in late:
                self._end(guest)
            self._due_s = min((guest.due_s for guest in self._guests), default=float("inf"))
            return len(late)

    def close(self) -> None:
        """Ends all; nobody is admitted any more."""
        with self._lock:
            self._closed = True
            for guest in list(self._guests):
                self._end(guest)
