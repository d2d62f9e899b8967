"""One tcp stream to a peer, run by one thread: connects, sends frames, takes replies in order.

The next frame goes out while the last one is answered, so that the wire never idles for a round
trip. Reads and writes are not in flight together: both sides could then be stuck sending.
"""

import contextlib
import errno
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer import vectored
from moonpool.transfer.base import Op
from moonpool.transfer.checksums import SEAL_BYTES, seal, seal_of
from moonpool.transfer.errors import PeerLost, TransferCorrupt
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.lookout import Lookout
from moonpool.transfer.slices import plain, shifted
from moonpool.transfer.tls import Tls, TlsVector, handshake_error
from moonpool.transfer.transports.cpus import MUCH_BYTES, Seat
from moonpool.transfer.transports.fences import LeftBehind, fencing, naming, new_name
from moonpool.transfer.transports.nics import Source
from moonpool.transfer.transports.tcp_awake import Flows, Intake, is_near
from moonpool.transfer.transports.tcp_seals import Seals
from moonpool.transfer.vectored import StreamBroken, Vector
from moonpool.transfer.wire import (
    FRAME_BYTES,
    HELLO_BYTES,
    RANGE_BYTES,
    RANGES_MAX,
    REPLY_BYTES,
    BadFrame,
    Frame,
    Status,
    WireOp,
    error_of,
    pack_hello,
    refused,
    unpack_hello,
    unpack_reply,
)

CONNECT_S = 5.0
HUNG_UP = {errno.ECONNRESET, errno.EPIPE, errno.EPROTO}
IN_FLIGHT_MAX = 2
_AT_ONCE = struct.pack("@ii", 1, 0)
_NO_REPLY = bytes(REPLY_BYTES)
End = Callable[[Job, Exception | None], None]  # from this thread


class ConnectFailed(Exception):
    """No stream came to be. `cause` is final for the jobs that wait when it is no PeerLost."""

    def __init__(self, cause: MoonpoolError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Stream:
    """Used by its own thread, but for `cut` and `shut`."""

    def __init__(
        self,
        peer: str,
        epoch: str,
        address: tuple[str, int],
        end: End,
        tls: Tls | None = None,
        source: Source | None = None,
        left: LeftBehind | None = None,
        lookout: Lookout | None = None,
        flows: Flows | None = None,
    ) -> None:
        """`left`: shared by all streams to this owner. `lookout`: None: nothing is looked for.
        `flows`: that what is read here counts among."""
        self._name = new_name()
        self._left = LeftBehind() if left is None else left
        self._told: set[bytes] = set()  # names of `left` that went out here
        self._fencing: dict[int, list[bytes]] = {}  # those before each frame
        self._fences = np.zeros(0, np.uint8)
        self._peer = peer
        self._epoch = epoch
        self._address = address
        self._source = source
        self._end = end
        self._tls = tls
        self._lock = threading.Lock()  # over sock as others see it, and in_flight
        self._sock: socket.socket | None = None
        self._shut = False
        self._in_flight: deque[Job] = deque()
        self._sent = 0  # frames
        self._answered = 0
        self._vector: Vector = Vector()
        self._intake = Intake(self._vector, lookout or Lookout(False), flows)
        self._seat = Seat(lookout or Lookout(False))
        self._watch = self._intake.watch
        self._near = False
        front = np.zeros(FRAME_BYTES, np.uint8)
        self._front_bytes = front.data
        self._front_address = int(front.ctypes.data)
        self._ranges = np.zeros((RANGES_MAX, 2), np.uint64)  # offset, length
        self._ranges_address = int(self._ranges.ctypes.data)
        reply = np.zeros(REPLY_BYTES, np.uint8)
        self._reply_bytes = reply.data
        self._reply_address = int(reply.ctypes.data)
        self._seals = Seals()
        self._spoiled = False  # bytes were damaged on it: what breaks with it does not pay

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def connect(self) -> None:
        """Raises ConnectFailed."""
        where = f"{self._peer} at {self._address[0]}:{self._address[1]}"
        try:
            status, epoch = self._handshake()
        except BadFrame as error:
            raise ConnectFailed(PeerLost(f"{where}: {error}")) from error
        except OSError as error:
            raise ConnectFailed(handshake_error(where, error)) from error
        except ValueError as error:  # of a host that no name can be
            raise ConnectFailed(PeerLost(f"{where}: {error}")) from error
        if status is Status.EPOCH or (status is Status.OK and epoch != self._epoch):
            raise ConnectFailed(refused(self._peer, "epoch"))
        if status is not Status.OK:
            raise ConnectFailed(PeerLost(f"{where} takes no more streams"))
        assert self._sock is not None
        try:
            self._sock.sendall(naming(self._name))
        except OSError as error:
            raise ConnectFailed(PeerLost(f"{where}: {error}")) from error

    def _handshake(self) -> tuple[Status, str]:
        found = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        self._use(sock)
        sock.settimeout(CONNECT_S)
        if self._source is not None:
            self._source.bind(sock)
        sock.connect(address)
        vectored.tune(sock)
        if self._tls is not None:
            safe = self._tls.wrap(sock, server=False)
            self._use(safe)
            safe.do_handshake()
            self._vector = TlsVector(safe)
            sock = safe
        sock.sendall(pack_hello(self._epoch))
        data = bytearray()
        while len(data) < HELLO_BYTES:
            part = sock.recv(HELLO_BYTES - len(data))
            if not part:
                raise StreamBroken(errno.ECONNRESET, "closed without a word")
            data += part
        sock.settimeout(None)
        self._near = is_near(sock)
        return unpack_hello(data)

    def _use(self, sock: socket.socket) -> None:
        with self._lock:
            self._sock = sock
            if self._shut:
                raise StreamBroken(errno.ECANCELED, "closed")

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
            raise StreamBroken(errno.ECANCELED, str(job.stopped))
        self._load(job)
        if self._near and job.slice.payload >= MUCH_BYTES:
            self._seat.stay()
        else:
            self._seat.pause()
        self._vector.send(self._sock.fileno())
        self._watch.begin()

    def _load(self, job: Job) -> None:
        """Makes its frame what the vector sends next."""
        piece, grant = job.slice, job.remote.grant
        count, self._sent = len(piece.lengths), self._sent + 1
        op = WireOp.READ if job.op is Op.READ else WireOp.WRITE
        frame = Frame(
            op,
            count,
            self._sent,
            grant.region,
            piece.payload,
            grant.key,
            int(piece.remote[0]) + grant.offset,
            int(piece.lengths[0]),
            job.checked,
        )
        self._front_bytes[:FRAME_BYTES] = frame.pack()
        if count > 1:
            self._ranges[1:count, 0] = piece.remote[1:]
            self._ranges[1:count, 0] += np.uint64(grant.offset)
            self._ranges[1:count, 1] = piece.lengths[1:]
        vector = self._vector
        vector.clear()
        if self._left:
            self._add_fences(vector)
        vector.add(self._front_address, FRAME_BYTES)
        if count > 1:
            vector.add(self._ranges_address + RANGE_BYTES, (count - 1) * RANGE_BYTES)
        if job.checked:
            rest = self._ranges[1:count].data.cast("B") if count > 1 else b""
            vector.add(self._seals.put_head(self._front_bytes, rest), SEAL_BYTES)
        if op is WireOp.WRITE:
            _add_memory(vector, job)
            if job.checked:
                vector.add(self._seals.put(self._memory_seal(job)), SEAL_BYTES)

    def _add_fences(self, vector: Vector) -> None:
        """What was given up is told of before the frame that `_sent` counts."""
        names = [name for name in self._left.names() if name not in self._told]
        if names:
            self._told.update(names)
            self._fencing[self._sent] = names
            self._fences = np.frombuffer(fencing(names), np.uint8)
            vector.add(int(self._fences.ctypes.data), self._fences.nbytes)

    def _expect(self, job: Job, vector: Vector) -> None:
        """Makes its answer what `vector` receives next."""
        self._reply_bytes[:] = _NO_REPLY
        vector.clear()
        vector.add(self._reply_address, REPLY_BYTES)
        if job.op is Op.READ:
            _add_memory(vector, job)
        if job.checked:
            vector.add(self._seals.address, SEAL_BYTES)

    def receive(self) -> None:
        """Takes the oldest reply owed and ends its job. Raises StreamBroken; that job and all after
        it are then still in flight."""
        assert self._sock is not None
        job = self._in_flight[0]
        self._expect(job, self._vector)
        try:
            self._take_in(job, self._sock)
        except StreamBroken:
            self._cut_short(job)
            raise
        self._answer(job)

    def _take_in(self, job: Job, sock: socket.socket) -> None:
        """Fills the vector. Raises StreamBroken."""
        if self._near and job.op is Op.READ:
            self._intake.fill(sock, begun=False)
            return
        seen = self._near and self._intake.look(sock)
        self._vector.receive(sock.fileno())
        if not seen:
            self._watch.came()

    def _cut_short(self, job: Job) -> None:
        """Its answer ended early: perhaps it was a refusal, which no bytes follow."""
        refusal = self._refusal(job)
        if refusal is not None:
            self._finish(refusal)

    def _answer(self, job: Job) -> None:
        """Its answer has arrived. Raises StreamBroken after a refusal."""
        refusal = self._refusal(job)
        if refusal is not None:
            self._finish(refusal)
            raise StreamBroken(errno.EPROTO, "the peer refused a frame")
        self._finish(self._damage(job) if job.checked else None)

    def _memory_seal(self, job: Job, *before: memoryview) -> bytes:
        here = shifted(job.slice.local, job.local.address)
        return seal(here, plain(job.slice.lengths), *before)

    def _damage(self, job: Job) -> PathFailed | None:
        """What the seal at the end of an answer says of the bytes before it."""
        reply = self._reply_bytes
        good = self._memory_seal(job, reply) if job.op is Op.READ else seal_of(reply)
        if self._seals.end == good:
            return None
        return PathFailed(TransferCorrupt(f"bytes from {self._peer} were damaged on their way"))

    def _refusal(self, job: Job) -> Exception | None:
        """What the reply that was read says, if it is not a plain yes."""
        if self._reply_bytes == _NO_REPLY:
            return None
        try:
            status, request, _ = unpack_reply(self._reply_bytes)
            if status is Status.OK and request != self._answered + 1:
                raise BadFrame(f"answer to request {request}")
        except BadFrame as error:
            return PathFailed(PeerLost(f"{self._peer} sent no proper reply: {error}"))
        if status is Status.OK:
            return None
        self._spoiled = self._spoiled or status is Status.CORRUPT
        refusal = error_of(status, self._peer)
        if job.checked and isinstance(refusal, MoonpoolError):
            return PathFailed(refusal)  # it is not sealed: it may be damage itself
        return refusal

    def _finish(self, error: Exception | None) -> None:
        with self._lock:
            job = self._in_flight.popleft()
            self._answered += 1
        if self._fencing and (names := self._fencing.pop(self._answered, None)) and error is None:
            self._left.settled(names)
            self._told.difference_update(names)
        self._end(job, error)

    def fail_all(self, reason: str, error: OSError | None = None) -> None:
        """Every job in flight ends: the stream is broken. A peer that answered before and then hung
        up did so for another job's sake (refused, or revoked), or is gone: then the next connection
        tells, and no job has to pay for this one."""
        self._abandon()
        if any(job.op is Op.WRITE for job in self._in_flight):
            self._left.add(self._name)  # before anybody hears that they failed
        hung_up = error is not None and error.errno in HUNG_UP and self._answered > 0
        collateral = (
            hung_up or self._spoiled or any(job.stopped is not None for job in self._in_flight)
        )
        while self._in_flight:
            cause = PeerLost(f"stream to {self._peer} broke: {reason}")
            self._finish(PathFailed(cause, collateral=collateral))

    def _abandon(self) -> None:
        """What was sent and has not arrived never will: it would arrive late, in memory that may be
        another's by then."""
        with self._lock:
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                self._sock.close()

    def close(self) -> None:
        with self._lock:
            if self._sock is not None:
                self._sock.close()

    # From any thread.

    def blame(self, job: Job | None, bug: MoonpoolError) -> None:
        """`job`, or else what is answered next, ends with `bug`; others in flight try again."""
        hit = job or (self._in_flight[0] if self._in_flight else None)
        if hit is not None:
            hit.stopped = hit.stopped or bug

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
            vectored.shut(self._sock)


def _add_memory(vector: Vector, job: Job) -> None:
    vector.add_all(job.slice.local, job.slice.lengths, job.local.address)
