"""The listening socket of a tcp owner: lets streams in, turns them away, ends those that only stand
there. One thread, and one more for each stream that was let in."""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from moonpool.transfer import vectored
from moonpool.transfer.tally import Tally
from moonpool.transfer.transports.tcp_guests import Guest, Guests

LINGER_S = 1.0  # for a peer that was turned away to read why
PARTING_MAX = 64  # that were turned away, and may not have read it yet
SOON_S = 0.001


class Door:
    """Threads end at `close`."""

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        serve: Callable[[Guest], None],
        tally: Tally,
        no_room: bytes = b"",
    ) -> None:
        """`serve` is run on a thread of its own for each stream until that ends; `no_room` is said
        to those that are turned away."""
        self.guests = Guests()
        self._name = name
        self._sock = sock
        self._serve = serve
        self._tally = tally
        self._no_room = no_room
        self._lock = threading.Lock()  # nobody is let in by half
        self._threads: set[threading.Thread] = set()  # of guests
        self._parting: deque[tuple[float, socket.socket]] = deque()  # until when; the acceptor's
        self._closed = False
        self._acceptor = threading.Thread(
            target=self._accept, name=f"moonpool-tcp-accept-{name}", daemon=True
        )

    def open(self) -> None:
        """Streams may come from now on."""
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            self._look_after(time.monotonic())
            try:
                sock, _ = self._sock.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._closed:
                    break
                self._tally.add("tcp.accept_failures")
                time.sleep(0.01)  # out of descriptors: let some come back
                continue
            if not self._let_in(sock):
                self._turn_away(sock)
        for _, sock in self._parting:
            sock.close()

    def _look_after(self, now_s: float) -> None:
        """Ends what has had its time, and sees to it that the next accept ends in time for more."""
        while self._parting and self._parting[0][0] <= now_s:
            self._parting.popleft()[1].close()
        due_s = self.guests.due_in_s(now_s)
        if due_s is not None and due_s <= 0.0:
            self._tally.add("tcp.streams_late", self.guests.sweep(now_s))
            due_s = self.guests.due_in_s(now_s)
        waits = [] if due_s is None else [due_s]
        if self._parting:
            waits.append(self._parting[0][0] - now_s)
        with contextlib.suppress(OSError):  # closed: accept says so
            self._sock.settimeout(max(min(waits), SOON_S) if waits else None)

    def _let_in(self, sock: socket.socket) -> bool:
        with self._lock:
            guest = self.guests.admit(sock, time.monotonic())
            if guest is None:
                return False
            name = f"moonpool-tcp-serve-{self._name}"
            thread = threading.Thread(target=self._run, args=(guest,), name=name, daemon=True)
            self._threads.add(thread)
            thread.start()
            return True

    def _run(self, guest: Guest) -> None:
        try:
            self._serve(guest)
        finally:
            self.guests.leave(guest)
            self._threads.discard(threading.current_thread())

    def _turn_away(self, sock: socket.socket) -> None:
        """To close at once, with the peer's greeting unread, could take back what we say."""
        self._tally.add("tcp.streams_refused")
        if not self._no_room:
            sock.close()
            return
        with contextlib.suppress(OSError):
            sock.send(self._no_room)
        vectored.shut(sock, socket.SHUT_WR)
        self._parting.append((time.monotonic() + LINGER_S, sock))
        if len(self._parting) > PARTING_MAX:
            self._parting.popleft()[1].close()

    def close(self) -> list[threading.Thread]:
        """Cuts every stream; the caller joins the threads, then closes the socket."""
        with self._lock:
            self._closed = True
            self.guests.close()
            threads = [self._acceptor, *self._threads]
        vectored.shut(self._sock)
        return threads
