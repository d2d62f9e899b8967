"""The owner's side of tcp: serves frames straight from and to registered memory.

One thread per stream, blocking: the kernel moves a whole frame in one call while Python sleeps. A
peer that stalls in a frame is dropped after `STALL_S`; nothing it sends can reach memory that its
capability does not cover. After small frames a stream looks for the next one for a moment before it
sleeps, where that pays (`lookout.py`).
"""

import contextlib
import socket
import ssl
import threading
import time

import numpy as np

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer import vectored
from moonpool.transfer.checksums import SEAL_BYTES, seal, seal_of
from moonpool.transfer.errors import GrantRefused
from moonpool.transfer.lookout import Watch
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.slices import Column, plain
from moonpool.transfer.tally import Tally
from moonpool.transfer.tls import Tls, TlsVector
from moonpool.transfer.transports import tcp_guests
from moonpool.transfer.transports.cpus import MUCH_BYTES, Seat
from moonpool.transfer.transports.fences import Fences
from moonpool.transfer.transports.tcp_awake import Intake, Lookouts, is_near
from moonpool.transfer.transports.tcp_door import Door
from moonpool.transfer.transports.tcp_guests import Guest
from moonpool.transfer.transports.tcp_seals import Seals
from moonpool.transfer.vectored import StreamBroken, Vector, receive_into
from moonpool.transfer.wire import (
    FRAME_BYTES,
    FRAME_BYTES_MAX,
    HELLO_BYTES,
    RANGE_BYTES,
    RANGES_MAX,
    REPLY_BYTES,
    STATUS_OF,
    BadFrame,
    Frame,
    Status,
    WireOp,
    check_of,
    pack_hello,
    pack_reply,
    unpack_frame,
    unpack_hello,
)

STALL_S = 10.0  # within a frame, without any progress
LOOK_PAYLOAD_MAX = 1 << 20  # of a frame, after which a next one may come soon
STAY_BYTES = 64 << 10  # of a WRITE from nearby, for which it is worth to stay awake
LINGER_S = 1.0  # for a refused peer to read why


class _Scratch:
    """Of one stream: its name, and buffers reused for every frame."""

    def __init__(self, guest: Guest, vector: Vector, lookouts: Lookouts, near: bool) -> None:
        self.guest = guest
        self.name = b""
        self.handed = False  # the stream is a line now, and the loop's
        self.watch = Watch(lookouts.small)
        self.saw = False  # the frame of now was looked for, and seen
        self.head = memoryview(bytearray(FRAME_BYTES))
        self.ranges = np.zeros((RANGES_MAX, 2), np.int64)  # offset, length
        self.ranges_bytes = self.ranges.data.cast("B")
        self.reply = np.zeros(REPLY_BYTES, np.uint8)
        self.reply_bytes = self.reply.data
        self.reply_address = int(self.reply.ctypes.data)
        self.vector = vector
        self.intake = Intake(vector, lookouts.small)
        self.bulk = Intake(vector, lookouts.bulk, lookouts.flows) if near else None
        self.seat = Seat(lookouts.bulk)
        self.seals = Seals()

    def head_is_whole(self, frame: Frame) -> bool:
        """Whether head and ranges are what the peer sent."""
        rest = self.ranges_bytes[RANGE_BYTES : frame.ranges * RANGE_BYTES]
        return self.seals.head == seal_of(self.head, rest)


class TcpServer:
    """Of one listening socket. Threads end at `close`."""

    def __init__(
        self,
        name: str,
        table: RegionTable,
        tally: Tally,
        sock: socket.socket,
        tls: Tls | None = None,
        fences: Fences | None = None,
        lookouts: Lookouts | None = None,
    ) -> None:
        """`fences`: of all servers of one owner, since a stream given up on one is told of on
        another. `lookouts`: of the engine; None: nothing is looked for."""
        self._lookouts = lookouts or Lookouts(False)
        self._fences = Fences() if fences is None else fences
        self._table = table
        self._tally = tally
        self._sock = sock
        self._tls = tls
        no_room = pack_hello(table.epoch, Status.BUSY) if tls is None else b""
        self._door = Door(name, sock, self._serve, tally, no_room)
        self._door.open()

    def _serve(self, guest: Guest) -> None:
        handed = False
        try:
            vectored.tune(guest.sock)
            sock = self._safe(guest)
            if self._greet(sock):
                vectored.set_timeouts(sock, STALL_S, STALL_S)
                handed = self._serve_frames(guest)
        except (OSError, MoonpoolError):
            pass  # the stream ends; its peer learns it from the end of file
        except BadFrame:
            self._tally.add("tcp.bad_frames")
        finally:
            if not handed:
                self._door.guests.leave(guest)  # from here on nobody else may shut it
                guest.sock.close()

    def _serve_frames(self, guest: Guest) -> bool:
        """Until it ends; True when it was handed over."""
        sock = guest.sock
        vector = TlsVector(sock) if isinstance(sock, ssl.SSLSocket) else Vector()
        scratch = _Scratch(guest, vector, self._lookouts, is_near(sock))
        try:
            while self._one_frame(sock, scratch):
                pass
        finally:
            self._fences.leave(scratch.name)
        return scratch.handed

    def _safe(self, guest: Guest) -> socket.socket:
        """What to speak over: tls, where we do. Raises OSError, BadFrame when it does not come to
        be."""
        if self._tls is None:
            return guest.sock
        safe = self._tls.wrap(guest.sock, server=True)
        self._door.guests.wrapped(guest, safe)
        safe.settimeout(tcp_guests.HELLO_S)
        try:
            safe.do_handshake()
        except OSError:
            self._tally.add("tcp.tls_refused")
            _linger(safe)
            raise
        return safe

    def _greet(self, sock: socket.socket) -> bool:
        vectored.set_timeouts(sock, tcp_guests.HELLO_S, tcp_guests.HELLO_S)
        buffer = bytearray(HELLO_BYTES)
        try:
            receive_into(sock, memoryview(buffer))
        except StreamBroken as error:
            raise BadFrame("no hello") from error
        _, epoch = unpack_hello(buffer)
        known = epoch == self._table.epoch
        if not known:
            self._table.refuse("epoch")
        sock.sendall(pack_hello(self._table.epoch, Status.OK if known else Status.EPOCH))
        return known

    def _one_frame(self, sock: socket.socket, scratch: _Scratch) -> bool:
        """False when the stream has ended, or must."""
        guest = scratch.guest
        guest.idle_since_s = guest.idle_since_s or time.monotonic()
        try:
            got = _head(sock, scratch)
        except (BlockingIOError, TimeoutError):
            return True  # between frames a peer may be silent for long: see `tcp_guests.py`
        guest.idle_since_s = 0.0
        scratch.watch.came()
        if not got:
            return False
        try:
            if got < FRAME_BYTES:
                receive_into(sock, scratch.head[got:])
            frame = unpack_frame(scratch.head)
            if frame.op in (WireOp.NAME, WireOp.FENCE, WireOp.LINE):
                return self._obey(sock, scratch, frame)
            if frame.ranges > 1:
                scratch.ranges[0] = (_signed(frame.offset), _signed(frame.length))
                rest = slice(RANGE_BYTES, frame.ranges * RANGE_BYTES)
                receive_into(sock, scratch.ranges_bytes[rest])
            if frame.sealed:
                receive_into(sock, scratch.seals.head_bytes)
        except StreamBroken as error:
            raise BadFrame("cut off before its payload") from error
        if frame.sealed and not scratch.head_is_whole(frame):
            self._tally.add("tcp.frames_corrupt")
            self._refuse(sock, frame, Status.CORRUPT)
            return False
        offsets, lengths = _columns(scratch, frame)
        return self._move(sock, scratch, frame, offsets, lengths)

    def _obey(self, sock: socket.socket, scratch: _Scratch, frame: Frame) -> bool:
        """A word about streams. False when this one must end."""
        name = frame.key
        plain_word = (frame.sealed, frame.ranges, frame.request, frame.region) == (False, 1, 0, 0)
        if not plain_word or frame.offset != check_of(name):
            raise BadFrame("no name of a stream")
        if frame.op is WireOp.LINE:
            may_go = not scratch.name and not isinstance(sock, ssl.SSLSocket)
            may_go = may_go and self._door.guests.hand_over(scratch.guest)
            scratch.handed = may_go and self._table.offer_line(sock, name)
            return False
        if frame.op is WireOp.FENCE:
            fenced = self._fences.fence(name, scratch.name)
            self._tally.add("tcp.fences" if fenced else "tcp.fences_failed")
            return fenced
        if scratch.name or not self._fences.enter(name, lambda: vectored.shut(sock)):
            return False
        scratch.name = name
        scratch.guest.named = True
        return True

    def _move(
        self, sock: socket.socket, scratch: _Scratch, frame: Frame, offsets: Column, lengths: Column
    ) -> bool:
        right = "r" if frame.op is WireOp.READ else "w"
        try:
            held, addresses = self._table.enter(
                frame.region, frame.key, right, offsets, lengths, lambda: vectored.shut(sock)
            )
        except GrantRefused as refusal:
            self._refuse(sock, frame, STATUS_OF[refusal.reason])
            return False
        scratch.guest.proven = True
        if scratch.bulk is not None and frame.payload >= MUCH_BYTES:
            scratch.seat.leave(sock)
        else:
            scratch.seat.pause()
        vector, seals = scratch.vector, scratch.seals
        vector.clear()
        whole = True
        try:
            if frame.op is WireOp.READ:
                scratch.reply_bytes[:] = pack_reply(Status.OK, frame.request, frame.payload)
                vector.add(scratch.reply_address, REPLY_BYTES)
                vector.add_all(addresses, lengths)
                if frame.sealed:
                    sealed = seal(plain(addresses), plain(lengths), scratch.reply_bytes)
                    vector.add(seals.put(sealed), SEAL_BYTES)
                vector.send(sock.fileno())
            else:
                vector.add_all(addresses, lengths)
                if frame.sealed:
                    vector.add(seals.address, SEAL_BYTES)
                try:
                    _take_in(sock, scratch, frame.payload)
                except StreamBroken as error:
                    raise BadFrame("cut off in its payload") from error
                if frame.sealed:
                    whole = seals.end == seal(plain(addresses), plain(lengths))
        finally:
            self._table.leave(held)
        if not whole:
            self._tally.add("tcp.frames_corrupt")
            self._refuse(sock, frame, Status.CORRUPT)
            return False
        if frame.op is WireOp.WRITE:
            reply = pack_reply(Status.OK, frame.request, 0)
            sock.sendall(reply + seal_of(reply) if frame.sealed else reply)
        self._tally.add("tcp.served_bytes", frame.payload)
        if frame.payload <= LOOK_PAYLOAD_MAX:
            scratch.watch.begin()
        return True

    def _refuse(self, sock: socket.socket, frame: Frame, status: Status) -> None:
        """Says why, then reads on for a moment: closing with bytes unread would reset the stream
        and could take the answer with it."""
        sock.sendall(pack_reply(status, frame.request, 0))
        _linger(sock)

    @property
    def streams(self) -> int:
        return len(self._door.guests)

    @property
    def made_room(self) -> int:
        """Streams that were ended for another's sake."""
        return self._door.guests.made_room

    def close(self) -> list[threading.Thread]:
        """Cuts every stream; the caller joins the threads."""
        return self._door.close()

    def close_socket(self) -> None:
        """After the threads have ended."""
        self._sock.close()


def _head(sock: socket.socket, scratch: _Scratch) -> int:
    """How many bytes of the next frame's head have come; 0 at the end of the stream. Raises
    BlockingIOError, TimeoutError when none did for long."""
    watch = scratch.watch
    if watch.expecting and watch.waits and not isinstance(sock, ssl.SSLSocket):
        got = 0

        def see() -> bool:
            nonlocal got
            try:
                got = sock.recv_into(scratch.head, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            return True

        scratch.saw = watch.look(see)
        if scratch.saw:
            return got
    scratch.saw = False
    return sock.recv_into(scratch.head, 0, vectored.wait_all(sock))


def _take_in(sock: socket.socket, scratch: _Scratch, payload: int) -> None:
    """Fills the vector. Who was awake for the head is so for what follows at once. Raises
    StreamBroken."""
    if scratch.saw and payload <= LOOK_PAYLOAD_MAX:
        scratch.intake.fill(sock, begun=True)
    elif scratch.bulk is not None and payload >= STAY_BYTES:
        scratch.bulk.fill(sock, begun=True)
    else:
        scratch.vector.receive(sock.fileno())


def _signed(value: int) -> int:
    """A number of 64 bits as numpy reads it; what is beyond 63 bits becomes negative."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _columns(scratch: _Scratch, frame: Frame) -> tuple[Column, Column]:
    """(offsets, lengths). Raises BadFrame when they cannot be this frame's."""
    if frame.ranges == 1:
        if frame.length != frame.payload:
            raise BadFrame("ranges and payload differ")
        return [frame.offset], [frame.length]
    ranges = scratch.ranges[: frame.ranges]
    lengths = ranges[:, 1]
    if int(lengths.min()) < 1 or int(lengths.max()) > FRAME_BYTES_MAX:
        raise BadFrame("a range of no or too much length")
    if int(lengths.sum()) != frame.payload:
        raise BadFrame("ranges and payload differ")
    return ranges[:, 0], lengths


def _linger(sock: socket.socket) -> None:
    """For what was said last to arrive: a close with bytes unread would take it back."""
    vectored.shut(sock, socket.SHUT_WR)
    deadline = time.monotonic() + LINGER_S
    vectored.set_timeouts(sock, LINGER_S, LINGER_S)
    sink = bytearray(1 << 20)
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline and socket.socket.recv_into(sock, sink):
            pass
