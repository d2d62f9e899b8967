"""One tcp stream to a peer, run by one thread: connects, sends frames, takes replies in order.

The next frame goes out while the last one is answered, so that the wire never idles for a round
trip. Reads and writes are not in flight together: both sides could then be stuck sending.
"""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer import vectored
from moonpool.transfer.base import Op
from moonpool.transfer.errors import PeerLost
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.vectored import StreamBroken, Vector, vector
from moonpool.transfer.wire import (
    HELLO_BYTES,
    REPLY_BYTES,
    BadFrame,
    Status,
    WireOp,
    error_of,
    pack_frame,
    pack_hello,
    refused,
    unpack_hello,
    unpack_reply,
)

CONNECT_S = 5.0
IN_FLIGHT_MAX = 2
End = Callable[[Job, Exception | None], None]  # from this thread


class ConnectFailed(Exception):
    """No stream came to be. `cause` is final for the jobs that wait when it is no PeerLost."""

    def __init__(self, cause: MoonpoolError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Stream:
    """Used by its own thread, but for `cut` and `shut`."""

    def __init__(self, peer: str, epoch: str, host: str, port: int, end: End) -> None:
        self._peer = peer
        self._epoch = epoch
        self._address = (host, port)
        self._end = end
        self._lock = threading.Lock()  # over sock as others see it, and in_flight
        self._sock: socket.socket | None = None
        self._shut = False
        self._in_flight: deque[Job] = deque()
        self._replies = np.zeros(REPLY_BYTES, np.uint8)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def connect(self) -> None:
        """Raises ConnectFailed."""
        where = f"{self._peer} at {self._address[0]}:{self._address[1]}"
        try:
            status, epoch = self._handshake()
        except (OSError, BadFrame) as error:
            raise ConnectFailed(PeerLost(f"{where}: {error}")) from error
        if status is Status.EPOCH or (status is Status.OK and epoch != self._epoch):
            raise ConnectFailed(refused(self._peer, "epoch"))
        if status is not Status.OK:
            raise ConnectFailed(PeerLost(f"{where} takes no more streams"))

    def _handshake(self) -> tuple[Status, str]:
        found = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        with self._lock:
            self._sock = sock
            if self._shut:
                raise StreamBroken("closed")
        sock.settimeout(CONNECT_S)
        sock.connect(address)
        vectored.tune(sock)
        sock.sendall(pack_hello(self._epoch))
        data = bytearray()
        while len(data) < HELLO_BYTES:
            part = sock.recv(HELLO_BYTES - len(data))
            if not part:
                raise StreamBroken("closed without a word")
            data += part
        sock.settimeout(None)
        return unpack_hello(data)

    def alive(self) -> bool:
        """False when the peer has hung up since the last reply."""
        assert self._sock is not None
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the end, or bytes that nobody asked for

    def can_send(self, job: Job) -> bool:
        """Whether the job may go out before the replies that are owed."""
        flying = self._in_flight
        return not flying or (len(flying) < IN_FLIGHT_MAX and flying[0].op is job.op)

    def send(self, job: Job) -> None:
        """Puts a claimed job in flight. Raises StreamBroken; the job is then in flight too."""
        assert self._sock is not None
        with self._lock:
            self._in_flight.append(job)
            job.runner = self
        if job.stopped is not None:
            raise StreamBroken(str(job.stopped))
        piece, grant = job.slice, job.remote.grant
        count = len(piece.lengths)
        op = WireOp.READ if job.op is Op.READ else WireOp.WRITE
        head = np.frombuffer(
            pack_frame(op, count, 0, grant.region, piece.payload, grant.key), np.uint8
        )
        ranges = vector(piece.remote + grant.offset, piece.lengths)
        front = vector([head.ctypes.data, ranges.ctypes.data], [head.nbytes, ranges.nbytes])
        if op is WireOp.WRITE:
            front = np.concatenate((front, self._memory(job)))
        vectored.send_all(self._sock.fileno(), front)

    def _memory(self, job: Job) -> Vector:
        return vector(job.slice.local + job.local.address, job.slice.lengths)

    def receive(self) -> None:
        """Takes the oldest reply owed and ends its job. Raises StreamBroken; that job and all after
        it are then still in flight."""
        assert self._sock is not None
        job = self._in_flight[0]
        self._replies[:] = 0
        vec = vector([self._replies.ctypes.data], [REPLY_BYTES])
        payload = job.slice.payload if job.op is Op.READ else 0
        if payload:
            vec = np.concatenate((vec, self._memory(job)))
        try:
            vectored.receive_all(self._sock.fileno(), vec)
        except StreamBroken:
            refusal = self._refusal()
            if refusal is not None:
                self._finish(refusal)
            raise
        refusal = self._refusal()
        if refusal is not None:
            self._finish(refusal)
            raise StreamBroken("the peer refused a frame")
        self._finish(None)

    def _refusal(self) -> Exception | None:
        """What the reply that was read says, if it is not a plain yes."""
        if not self._replies.any():
            return None
        try:
            status, _, _ = unpack_reply(self._replies.tobytes())
        except BadFrame as error:
            return PathFailed(PeerLost(f"{self._peer} sent no proper reply: {error}"))
        return None if status is Status.OK else error_of(status, self._peer)

    def _finish(self, error: Exception | None) -> None:
        with self._lock:
            job = self._in_flight.popleft()
        self._end(job, error)

    def fail_all(self, reason: str) -> None:
        """Every job in flight ends: the stream is broken."""
        collateral = any(job.stopped is not None for job in self._in_flight)
        while self._in_flight:
            cause = PeerLost(f"stream to {self._peer} broke: {reason}")
            self._finish(PathFailed(cause, collateral=collateral))

    def close(self) -> None:
        with self._lock:
            if self._sock is not None:
                self._sock.close()

    # From any thread.

    def cut(self, job: Job) -> None:
        """Breaks the stream if `job` is in flight on it; other jobs in flight try again."""
        with self._lock:
            if job in self._in_flight:
                self._break()

    def shut(self) -> None:
        """Breaks the stream, whatever it does."""
        with self._lock:
            self._shut = True
            self._break()

    def _break(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
