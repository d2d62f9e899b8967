"""One end of the handshake connection. Reads on one thread; sends from any, without blocking."""

import contextlib
import errno
import socket
import threading
import time

from moonpool.transfer.transports.rdma_wire import Message, pack, unpack
from moonpool.transfer.wire import HELLO_BYTES, BadFrame

KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 5, 2, 3  # a machine that vanished: 11 s

GONE = {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN}


class ControlLost(OSError):
    """The other side hung up, or said nothing in time."""


class Control:
    """Owns the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._is_shut = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
            (socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S),
            (socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send_raw(self, data: bytes) -> None:
        """Raises OSError. A peer that does not read loses the connection: what it has not heard
        it must not go on without."""
        with self._sending:
            try:
                if self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data):
                    return
            except OSError:
                self.shut()
                raise
        self.shut()
        raise ControlLost("the peer does not read")

    def send(self, message: Message) -> None:
        """Raises OSError."""
        self.send_raw(pack(message))

    def hello(self, deadline_s: float) -> bytes:
        """The first bytes, which come before all messages. Raises OSError."""
        while len(self._buffer) < HELLO_BYTES:
            self._read(deadline_s - time.monotonic())
        data = bytes(self._buffer[:HELLO_BYTES])
        del self._buffer[:HELLO_BYTES]
        return data

    def receive(self, timeout_s: float) -> Message:
        """The next message. Raises OSError, BadFrame."""
        deadline_s = time.monotonic() + timeout_s
        while (message := unpack(self._buffer)) is None:
            self._read(deadline_s - time.monotonic())
        return message

    def arrived(self) -> list[Message]:
        """Messages that are there, without waiting. Raises OSError, BadFrame."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self._read(0.0)
        out = []
        while (message := unpack(self._buffer)) is not None:
            out.append(message)
        return out

    def _read(self, timeout_s: float) -> None:
        self._sock.settimeout(max(timeout_s, 0.0))
        data = self._sock.recv(1 << 16)
        if not data:
            if self._buffer:
                raise BadFrame("message cut off")
            raise ControlLost("the peer hung up")
        self._buffer += data

    def shut(self) -> None:
        """Nothing is read any more; a reader wakes up, and closes. The other side hears of it by
        that alone: then our queue pairs are gone. From any thread."""
        self._is_shut = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def goodbye(self, timeout_s: float) -> bool:
        """Ends our half; whether the other side ended its own in time. By the reading thread."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self._sock.shutdown(socket.SHUT_WR)
            if self._is_shut:
                return False  # what we would read is our own doing
            while True:
                self._sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
                if not self._sock.recv(1 << 16):
                    return True
        except TimeoutError:
            return False
        except OSError as error:
            return error.errno in GONE  # with a reset, for want of a process

    def close(self) -> None:
        """By the reading thread only."""
        self._sock.close()
