"""A line: a connection to an owner over which its user speaks with small messages and the bytes
that belong to them, one exchange at a time. The transfer library carries it; what is said is its
user's business.

Everything here runs on the event loop and never blocks; for
much at once an owner may have a thread of its own use the socket (`fd`).
"""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable

from moonpool.transfer import vectored
from moonpool.transfer.line_frames import HEAD_BYTES, LineFrame, body_bytes_of, frame_of
from moonpool.transfer.lookout import Lookout, Watch
from moonpool.transfer.vectored import StreamBroken
from moonpool.transfer.wakeful import Wakeful

INBOX_BYTES = 8 << 10
LOOK_S = 150e-6  # for an answer, before we sleep: to sleep and be woken takes as long
LOOK_LONG_S = 300e-6  # after much was sent: its last part is still on its way to the other's memory
NEXT_MAX_S = 200e-6  # a question that comes later after our answer is slept for
PAUSE_S = 100e-6  # without a byte in the middle of many, before we sleep
HURRY_S = 500e-6  # of one turn of the loop, while bytes keep moving
# As plain numbers: flags of the enum take longer to join than a small message to send.
_NOW = int(socket.MSG_DONTWAIT)
_PEEK_NOW = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_SEND_NOW = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_SEND_MORE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL | socket.MSG_MORE)


class Line:
    """One side of a connection. Every method but `close` raises StreamBroken when it ended, or when
    the other side sends what none of us sends; close it then."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        lookout: Lookout | None = None,
        wakeful: Wakeful | None = None,
    ) -> None:
        """Whoever must not wait says so with each call, whatever the socket is set to. `lookout`:
        for all lines of an engine; None: nothing is looked for. `wakeful`: on the owner's side."""
        self.sock = sock
        self.closed = False
        self.expecting = False  # an exchange is under way: what comes is looked for
        self._loop = loop
        self._lookout = lookout or Lookout(False)
        self._wakeful = wakeful
        self._next = Watch(self._lookout, NEXT_MAX_S)  # question, after our answer
        self._found: LineFrame | None = None  # by the look that is going on
        self._waiter: asyncio.Future[None] | None = None
        self._inbox = bytearray(INBOX_BYTES)
        self._view = memoryview(self._inbox)
        self._start = self._end = 0  # what lies in the inbox
        self._long = memoryview(b"")  # room for a frame that the inbox does not hold, kept
        self._long_bytes = self._long_filled = 0  # of such a frame; 0: there is none
        self._fd = sock.fileno()
        self._reading = self._writing = False
        self._turn_ends_s = 0.0  # how long we may go on without a rest
        self._moved_s = 0.0  # when the last bytes did
        self._lent = False  # a thread uses the socket
        self._heard: Callable[[], None] = self._unasked

    def watch(self, heard: Callable[[], None] | None = None) -> None:
        """The loop looks after it from now on. `heard`, without any: whoever speaks unasked is hung
        up on."""
        if heard is not None:
            self._heard = heard
        self.resume()

    def pause(self) -> None:
        """What comes is left on the line. Idempotent."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Idempotent."""
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def lend(self) -> None:
        """A thread uses the socket until `give_back`: to close the line is only to cut it."""
        self._lent = True
        os.set_blocking(self._fd, True)  # a loop may have made it otherwise

    def give_back(self) -> None:
        """The thread has left it. Idempotent."""
        self._lent = False
        if self.closed:
            self.sock.close()

    def close(self) -> None:
        """Nothing of the loop's touches memory for it afterwards. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.pause()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._lent:
            vectored.shut(self.sock)
        else:
            self.sock.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(StreamBroken(errno.ECANCELED, "the line was closed"))

    # Frames.

    def try_frame(self) -> LineFrame | None:
        """The next frame, if all of its head and body is there."""
        while True:
            frame = self._parse()
            if frame is not None:
                return frame
            if not self._more():
                return None

    def _more(self) -> bool:
        """Takes in what has arrived; False when that is nothing."""
        if self._long_bytes:
            got = self._receive_now(self._long[self._long_filled : self._long_bytes])
            self._long_filled += got
            return got > 0
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == INBOX_BYTES:
            kept = bytes(self._view[self._start : self._end])
            self._view[: len(kept)] = kept
            self._start, self._end = 0, len(kept)
        got = self._receive_now(self._view[self._end :])
        self._end += got
        return got > 0

    def _parse(self) -> LineFrame | None:
        if self._long_bytes:
            if self._long_filled < self._long_bytes:
                return None
            whole, self._long_bytes = self._long[: self._long_bytes], 0
            return frame_of(whole)
        have = self._end - self._start
        if have < HEAD_BYTES:
            return None
        body_bytes = body_bytes_of(self._view[self._start : self._start + HEAD_BYTES])
        frame_bytes = HEAD_BYTES + body_bytes
        if have >= frame_bytes:
            whole = self._view[self._start : self._start + frame_bytes]
            self._start += frame_bytes
            return frame_of(whole)
        if frame_bytes > INBOX_BYTES:
            if len(self._long) < frame_bytes:
                self._long = memoryview(bytearray(frame_bytes))
            self._long[:have] = self._view[self._start : self._end]
            self._long_bytes, self._long_filled = frame_bytes, have
            self._start = self._end = 0
        return None

    def look_frame(self, for_s: float = LOOK_S) -> LineFrame | None:
        """The next frame, if it comes within `for_s`, or is there and no look is to be had."""
        self._lookout.look(self._see, for_s)
        frame, self._found = self._found or self.try_frame(), None
        if frame is not None:
            self._moved_s = time.perf_counter()
            self._turn_ends_s = self._moved_s + HURRY_S
        return frame

    def _see(self) -> bool:
        self._found = self.try_frame()
        return self._found is not None

    async def next_frame(self, timeout_s: float) -> LineFrame:
        """The next frame. Raises TimeoutError when nothing at all comes for `timeout_s`."""
        while (frame := self.try_frame()) is None:
            await self._wait(timeout_s)
        return frame

    def answered(self) -> None:
        """Where the next question uses to follow at once, the loop does not sleep before it."""
        if self._wakeful is not None:
            self._next.begin()
            if self._next.expecting:
                self._wakeful.stay(self._next.usual_s)

    def asked(self) -> None:
        """The next question is there."""
        if self._wakeful is not None:
            self._next.came()
            self._wakeful.came()

    # Payload.

    def _receive_now(self, view: memoryview) -> int:
        """Bytes that were there; 0: none yet."""
        try:
            got = self.sock.recv_into(view, 0, _NOW)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise StreamBroken(error.errno, error.strerror) from error
        if not got:
            raise StreamBroken(errno.ECONNRESET, "closed by the peer")
        return got

    def take_now(self, view: memoryview) -> int:
        """Fills the beginning of `view` with payload that is there; how much that was."""
        waiting = self._end - self._start
        if waiting:
            part = min(waiting, len(view))
            view[:part] = self._view[self._start : self._start + part]
            self._start += part
            return part
        got = self._receive_now(view)
        if got:
            self._moved_s = time.perf_counter()
        return got

    async def more(self, timeout_s: float) -> None:
        """Nothing is there: we sleep until something is, unless there was some a moment ago.
        Raises TimeoutError."""
        os.sched_yield()
        if time.perf_counter() - self._moved_s >= PAUSE_S:
            await self._wait(timeout_s)

    async def take(self, view: memoryview, timeout_s: float) -> None:
        """Fills all of `view`. Raises TimeoutError after `timeout_s` without progress."""
        while view:
            got = self.take_now(view)
            if got:
                view = view[got:]
            else:
                await self.more(timeout_s)

    async def rest(self) -> None:
        """Between parts of much: others on the loop have their turn, if ours was long."""
        if time.perf_counter() >= self._turn_ends_s:
            await asyncio.sleep(0)
            self._moved_s = time.perf_counter()
            self._turn_ends_s = self._moved_s + HURRY_S

    def take_waiting(self, view: memoryview) -> None:
        """On a thread that it was lent to: fills all of `view`, waiting."""
        part = min(self._end - self._start, len(view))
        if part:
            view[:part] = self._view[self._start : self._start + part]
            self._start += part
            view = view[part:]
        ends_s = time.perf_counter() + PAUSE_S
        while view:
            got = self._receive_now(view)
            if got:
                view, ends_s = view[got:], time.perf_counter() + PAUSE_S
            elif time.perf_counter() >= ends_s:
                vectored.receive_into(self.sock, view)
                return
            else:
                os.sched_yield()

    # Sending.

    def send_now(self, views: list[bytes | memoryview], *, more: bool = False) -> int:
        """Bytes that the kernel took. `more` follow at once: no small packets are made of their
        ends, which the other side would be slow to acknowledge."""
        try:
            return self.sock.sendmsg(views, (), _SEND_MORE if more else _SEND_NOW)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise StreamBroken(error.errno, error.strerror) from error

    async def send(
        self, views: list[bytes | memoryview], timeout_s: float, *, more: bool = False
    ) -> None:
        """All of them. Raises TimeoutError after `timeout_s` without progress."""
        sent = self.send_now(views, more=more)
        self._moved_s = time.perf_counter()
        for view in views:
            if sent >= len(view):
                sent -= len(view)
            else:
                await self._send_rest(memoryview(view)[sent:], timeout_s, more)
                sent = 0

    async def _send_rest(self, left: memoryview, timeout_s: float, more: bool) -> None:
        while left:
            sent = self.send_now([left], more=more)
            left = left[sent:]
            if sent:
                self._moved_s = time.perf_counter()
                continue
            os.sched_yield()
            if time.perf_counter() - self._moved_s >= PAUSE_S:
                await self._writable(timeout_s)

    # The loop.

    def _on_readable(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            return
        self._heard()

    def _unasked(self) -> None:
        """The other side has gone, or speaks without being asked."""
        if self.expecting:
            self.pause()  # until somebody waits
            return
        try:
            self.sock.recv(1, _PEEK_NOW)
        except BlockingIOError:
            return  # somebody has taken it meanwhile
        except OSError:
            pass
        self.close()

    async def _writable(self, timeout_s: float) -> None:
        if self.closed:
            raise StreamBroken(errno.ECANCELED, "the line was closed")
        self._writing = True
        self._loop.add_writer(self._fd, self._on_writable)
        try:
            await self._wait(timeout_s)
        finally:
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, timeout_s: float) -> None:
        if self.closed:
            raise StreamBroken(errno.ECANCELED, "the line was closed")
        self.resume()
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, _give_up, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        self._moved_s = time.perf_counter()
        self._turn_ends_s = self._moved_s + HURRY_S


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError("nothing moves on the line"))
