"""A stream for small transfers, driven by the event loop itself: no thread is woken, on the way out
or back. What is large goes over the streams that have threads, so that it holds up nothing here.

Nothing waits: frames go out and answers come in as far as the kernel takes and has them, and the
loop tells when there is more. A lone answer that may be expected within microseconds is looked for
first, once all else that the loop has at hand is done (`lookout.py`).
"""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections import deque
from collections.abc import Callable

from moonpool.messages.errors import BugError
from moonpool.transfer.base import Op, Priority
from moonpool.transfer.job import Job
from moonpool.transfer.lookout import Lookout
from moonpool.transfer.transports.fences import LeftBehind
from moonpool.transfer.transports.nics import Source
from moonpool.transfer.transports.tcp_stream import End, Stream
from moonpool.transfer.vectored import StreamBroken, Vector

log = logging.getLogger(__name__)
PAYLOAD_MAX = 1 << 20  # above, a thread that blocks is faster
WRITE_FAR_MAX = 256 << 10  # the same for what must wait until a network has taken it
JOBS_MAX = 16  # in flight
BYTES_MAX = 4 << 20  # in flight
_PEEK_NOW = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
PAUSE_S = 40e-6  # without a byte in the middle of an answer, before the loop does something else
HURRY_S = 300e-6  # for one answer, however well its bytes keep coming


def fits(job: Job) -> bool:
    """Whether a job is one for an express stream."""
    return (
        job.slice.payload <= PAYLOAD_MAX
        and job.priority is Priority.FOREGROUND
        and not job.checked  # the loop has better to do than to hash
        and (job.inline or job.carrier is None)  # several NICs: it may be a piece of much
    )


class ExpressStream(Stream):
    """`connect` is called on a thread, everything else on the loop. `end` is told of every job's
    end, `gone` once, before them, when the stream is over."""

    def __init__(
        self,
        peer: str,
        epoch: str,
        address: tuple[str, int],
        end: End,
        gone: Callable[["ExpressStream", str], None],
        source: Source | None = None,
        left: LeftBehind | None = None,
        lookout: Lookout | None = None,
    ) -> None:
        super().__init__(peer, epoch, address, end, None, source, left, lookout)
        self._will_look = False
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Job] = deque()
        self._incoming = Vector()
        self._loaded = False  # the vector holds what is left of the first unsent frame
        self._expecting = False  # the other one holds what is left of the first answer
        self._writer = False  # the loop tells when more can be sent
        self._flying_bytes = 0
        self._used_s = time.monotonic()
        self._over = False

    def open(self) -> None:
        """The stream is connected and jobs may come."""
        assert self._sock is not None
        self._fd = self._sock.fileno()
        self._loop.add_reader(self._fd, self._on_readable)

    def has_room(self, job: Job) -> bool:
        payload = job.slice.payload
        if job.op is Op.WRITE and payload > WRITE_FAR_MAX and (self._in_flight or not self._near):
            return False
        return (
            len(self._in_flight) < JOBS_MAX
            and self._flying_bytes + payload <= BYTES_MAX
            and not self._over
        )

    def start(self, job: Job) -> None:
        """Takes a claimed job. Never blocks."""
        self._flying_bytes += job.slice.payload
        self._used_s = job.started_s
        job.runner = self
        self._in_flight.append(job)
        self._unsent.append(job)
        if not self._loaded:
            self._flush()

    def _await_answer(self) -> None:
        """All is sent."""
        if len(self._in_flight) == 1:
            self._watch.begin()
            if self._watch.expecting and not self._will_look:
                self._will_look = True
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Looks for the answer that is owed, unless it has come or others are owed as well."""
        self._will_look = False
        lone = len(self._in_flight) == 1 and not self._unsent
        if lone and not self._over and not self._expecting:
            self._watch.look(self._glance)

    def _glance(self) -> bool:
        """Takes what is there; whether anything was, or nothing ever will be."""
        self._on_readable()
        return self._incoming.moved_bytes > 0 or self._over

    def idle_s(self, now_s: float) -> float:
        """Since when it has had nothing to do."""
        return 0.0 if self._in_flight else now_s - self._used_s

    def _flush(self) -> None:
        """Sends until the kernel takes no more."""
        try:
            while self._unsent:
                if not self._loaded:
                    self._load(self._unsent[0])
                    self._loaded = True
                if not self._push():
                    self._watch_writable(True)
                    return
                self._loaded = False
                self._unsent.popleft()
        except StreamBroken as error:
            self.break_off(str(error), error)
            return
        except Exception as error:  # noqa: BLE001  of the first unsent job; others try again
            self._drop(self._unsent[0], error)
            return
        self._watch_writable(False)
        self._await_answer()

    def _push(self) -> bool:
        """Sends what the kernel takes of the first unsent frame; True when that is all. While a
        peer of this host keeps taking it in, another turn of the loop for each handful would take
        longer than that."""
        vector, seen_bytes = self._vector, -1
        pause_ends_s = ends_s = 0.0
        while not vector.try_send(self._fd):
            if not self._near:
                return False
            now_s = time.perf_counter()
            if seen_bytes < 0:
                ends_s = now_s + HURRY_S
            if vector.moved_bytes != seen_bytes:
                seen_bytes, pause_ends_s = vector.moved_bytes, now_s + PAUSE_S
            if now_s >= pause_ends_s or now_s >= ends_s:
                return False
        return True

    def _watch_writable(self, wanted: bool) -> None:
        if wanted and not self._writer:
            self._loop.add_writer(self._fd, self._flush)
        elif self._writer and not wanted:
            self._loop.remove_writer(self._fd)
        self._writer = wanted

    def _on_readable(self) -> None:
        try:
            if not self._in_flight:
                self._require_silence()
                return
            while self._in_flight and not self._over:
                job = self._in_flight[0]
                if not self._expecting:
                    self._expect(job, self._incoming)
                    self._expecting = True
                if not self._take():
                    return
                self._expecting = False
                self._flying_bytes -= job.slice.payload
                self._answer(job)
        except StreamBroken as error:
            if self._expecting:
                self._cut_short(self._in_flight[0])
            self.break_off(str(error), error)
        except Exception as error:  # noqa: BLE001  of the first that waits for an answer
            self._drop(self._in_flight[0] if self._in_flight else None, error)

    def _drop(self, job: Job | None, error: Exception) -> None:
        """Something is wrong with `job`, or with us: the stream is not to be trusted any more."""
        log.error("express stream to %s failed", self._peer, exc_info=error)
        self.blame(job, BugError(f"tcp failed: {error!r}"))
        self.break_off(f"failed: {error!r}")

    def _require_silence(self) -> None:
        """A look may have taken the answer that the loop calls us for. Raises StreamBroken when
        there is more than nothing."""
        assert self._sock is not None
        try:
            self._sock.recv(1, _PEEK_NOW)
        except BlockingIOError:
            return
        except OSError as error:
            raise StreamBroken(error.errno, error.strerror) from error
        raise StreamBroken(errno.ECONNRESET, "closed, or spoken on without a question")

    def _take(self) -> bool:
        """Takes what there is of the answer; True when that is all. While its bytes keep coming,
        another turn of the loop for each handful would take longer than they do."""
        vector, seen_bytes = self._incoming, 0
        pause_ends_s = ends_s = 0.0
        while not vector.try_receive(self._fd):
            if not vector.moved_bytes:
                return False
            now_s = time.perf_counter()
            if not seen_bytes:
                self._watch.came()
                ends_s = now_s + HURRY_S
            if vector.moved_bytes != seen_bytes:
                seen_bytes, pause_ends_s = vector.moved_bytes, now_s + PAUSE_S
            if now_s >= pause_ends_s or now_s >= ends_s:
                return False
        if not seen_bytes:
            self._watch.came()
        return True

    def break_off(self, reason: str, error: OSError | None = None) -> None:
        """The stream is over, and every job in flight ends. Idempotent."""
        if self._over:
            return
        self._over = True
        self._loop.remove_reader(self._fd)
        self._watch_writable(False)
        self._unsent.clear()
        self._abandon()
        self._gone(self, reason)
        self.fail_all(reason, error)

    def _break(self) -> None:
        with contextlib.suppress(OSError):
            super()._break()
