"""The owner's side of tcp: serves frames straight from and to registered memory.

One thread per stream, blocking: the kernel moves a whole frame in one call while Python sleeps. A
peer that stalls in a frame is dropped after `STALL_S`; nothing it sends can reach memory that its
capability does not cover.
"""

import contextlib
import socket
import threading
import time

import numpy as np

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer import vectored
from moonpool.transfer.errors import GrantRefused
from moonpool.transfer.regions import Offsets, RegionTable
from moonpool.transfer.tally import Tally
from moonpool.transfer.vectored import StreamBroken, Vector, vector
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
    pack_hello,
    pack_reply,
    unpack_frame,
    unpack_hello,
)

STREAMS_MAX = 512
STALL_S = 10.0  # within a frame, without any progress
HELLO_S = 5.0
LINGER_S = 1.0  # for a refused peer to read why


class _Scratch:
    """Buffers of one stream, reused for every frame."""

    def __init__(self) -> None:
        self.head = np.zeros(FRAME_BYTES, np.uint8)
        self.ranges = np.zeros((RANGES_MAX, 2), np.uint64)
        self.reply = np.zeros(REPLY_BYTES, np.uint8)

    def head_vector(self) -> Vector:
        return vector([self.head.ctypes.data], [FRAME_BYTES])

    def ranges_vector(self, count: int) -> Vector:
        return vector([self.ranges.ctypes.data], [count * RANGE_BYTES])

    def reply_address(self, reply: bytes) -> int:
        self.reply[:] = np.frombuffer(reply, np.uint8)
        return int(self.reply.ctypes.data)


class TcpServer:
    """Accepts on one listening socket. Threads end at `close`."""

    def __init__(self, name: str, table: RegionTable, tally: Tally, sock: socket.socket) -> None:
        self._name = name
        self._table = table
        self._tally = tally
        self._sock = sock
        self._lock = threading.Lock()
        self._streams: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._acceptor = threading.Thread(
            target=self._accept, name=f"moonpool-tcp-accept-{name}", daemon=True
        )
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                if self._closed:
                    return
                self._tally.add("tcp.accept_failures")
                time.sleep(0.01)  # out of descriptors: let some come back
                continue
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        with self._lock:
            full = len(self._streams) >= STREAMS_MAX
            if not full and not self._closed:
                thread = threading.Thread(
                    target=self._serve,
                    args=(sock,),
                    name=f"moonpool-tcp-serve-{self._name}",
                    daemon=True,
                )
                self._streams[sock] = thread
                thread.start()
                return
        self._tally.add("tcp.streams_refused")
        with contextlib.suppress(OSError):
            sock.send(pack_hello(self._table.epoch, Status.BUSY))
        sock.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            vectored.tune(sock)
            if self._greet(sock):
                vectored.set_timeouts(sock, STALL_S, STALL_S)
                scratch = _Scratch()
                while self._one_frame(sock, scratch):
                    pass
        except (OSError, MoonpoolError):
            pass  # the stream ends; its peer learns it from the end of file
        except BadFrame:
            self._tally.add("tcp.bad_frames")
        finally:
            with self._lock:
                self._streams.pop(sock, None)
            sock.close()

    def _greet(self, sock: socket.socket) -> bool:
        vectored.set_timeouts(sock, HELLO_S, HELLO_S)
        buffer = np.zeros(HELLO_BYTES, np.uint8)
        try:
            vectored.receive_all(sock.fileno(), vector([buffer.ctypes.data], [HELLO_BYTES]))
        except StreamBroken as error:
            raise BadFrame("no hello") from error
        _, epoch = unpack_hello(buffer.tobytes())
        known = epoch == self._table.epoch
        sock.sendall(pack_hello(self._table.epoch, Status.OK if known else Status.EPOCH))
        if not known:
            self._table.refusals += 1
        return known

    def _one_frame(self, sock: socket.socket, scratch: _Scratch) -> bool:
        """False when the stream has ended, or must."""
        fd = sock.fileno()
        head = scratch.head_vector()
        try:
            vectored.receive_all(fd, head)
        except StreamBroken as error:
            if int(head[0, 1]) == FRAME_BYTES:
                return error.idle  # between frames a peer may be silent for as long as it likes
            raise BadFrame("frame cut off in its head") from error
        frame = unpack_frame(scratch.head.tobytes())
        try:
            vectored.receive_all(fd, scratch.ranges_vector(frame.ranges))
        except StreamBroken as error:
            raise BadFrame("frame cut off in its ranges") from error
        ranges = scratch.ranges[: frame.ranges].view(np.int64)
        offsets, lengths = ranges[:, 0], ranges[:, 1]
        if int(lengths.min()) < 1 or int(lengths.max()) > FRAME_BYTES_MAX:
            raise BadFrame("a range of no or too much length")
        if int(lengths.sum()) != frame.payload:
            raise BadFrame("ranges and payload differ")
        return self._move(sock, scratch, frame, offsets, lengths)

    def _move(
        self,
        sock: socket.socket,
        scratch: _Scratch,
        frame: Frame,
        offsets: Offsets,
        lengths: Offsets,
    ) -> bool:
        right = "r" if frame.op is WireOp.READ else "w"
        try:
            held, addresses = self._table.enter(
                frame.region, frame.key, right, offsets, lengths, lambda: _shut(sock)
            )
        except GrantRefused as refusal:
            self._refuse(sock, frame, STATUS_OF[refusal.reason])
            return False
        try:
            if frame.op is WireOp.READ:
                reply = scratch.reply_address(pack_reply(Status.OK, frame.request, frame.payload))
                vec = np.empty((frame.ranges + 1, 2), np.uint64)
                vec[0] = (reply, REPLY_BYTES)
                vec[1:, 0] = addresses
                vec[1:, 1] = lengths
                vectored.send_all(sock.fileno(), vec)
            else:
                try:
                    vectored.receive_all(sock.fileno(), vector(addresses, lengths))
                except StreamBroken as error:
                    raise BadFrame("frame cut off in its payload") from error
        finally:
            self._table.leave(held)
        if frame.op is WireOp.WRITE:
            sock.sendall(pack_reply(Status.OK, frame.request, 0))
        self._tally.add(f"tcp.served_{frame.op.name.lower()}_bytes", frame.payload)
        return True

    def _refuse(self, sock: socket.socket, frame: Frame, status: Status) -> None:
        """Says why, then reads on for a moment: closing with bytes unread would reset the stream
        and could take the answer with it."""
        sock.sendall(pack_reply(status, frame.request, 0))
        sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + LINGER_S
        vectored.set_timeouts(sock, LINGER_S, LINGER_S)
        sink = bytearray(1 << 20)
        while time.monotonic() < deadline and sock.recv_into(sink):
            pass

    @property
    def streams(self) -> int:
        return len(self._streams)

    def close(self) -> list[threading.Thread]:
        """Cuts every stream; the caller joins the threads."""
        with self._lock:
            self._closed = True
            threads = [self._acceptor, *self._streams.values()]
            for sock in self._streams:
                _shut(sock)
        _shut(self._sock)
        return threads

    def close_socket(self) -> None:
        """After the threads have ended."""
        self._sock.close()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
