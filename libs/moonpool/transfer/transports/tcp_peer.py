"""The client's side of tcp: one path per peer address, with a queue and a few streams, and one
more stream for what is small."""

import asyncio
import contextlib
import logging
import threading
import time

from moonpool.messages.errors import BugError, MoonpoolError
from moonpool.transfer.base import Priority
from moonpool.transfer.errors import PeerLost
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.lanes import Lanes
from moonpool.transfer.tally import Tally
from moonpool.transfer.tls import Tls
from moonpool.transfer.transports.base import Reporter
from moonpool.transfer.transports.fences import LeftBehind
from moonpool.transfer.transports.nics import Source
from moonpool.transfer.transports.tcp_awake import Lookouts
from moonpool.transfer.transports.tcp_express import ExpressStream, fits
from moonpool.transfer.transports.tcp_keeper import Keeper
from moonpool.transfer.transports.tcp_stream import ConnectFailed, Stream
from moonpool.transfer.vectored import StreamBroken

log = logging.getLogger(__name__)
STREAMS_PER_PEER = 2
IDLE_S = 30.0  # a stream without work closes
RETIRE_LOOK_S = 0.05  # between looks whether a stream that must go is idle
EXPRESS_AGAIN_S = 1.0  # after one could not be had


class TcpPath:
    """Streams are opened when jobs wait and none is free. Every stream has its own thread, so a
    peer that hangs keeps nobody else waiting. The next job is for the one that was the last to have
    work: its threads on both sides may be awake still."""

    name = "tcp"
    ways = 1

    def __init__(
        self,
        peer: str,
        epoch: str,
        host: str,
        port: int,
        reporter: Reporter,
        tally: Tally,
        tls: Tls | None = None,
        source: Source | None = None,
        keeper: Keeper | None = None,
        left: LeftBehind | None = None,
        lookouts: Lookouts | None = None,
    ) -> None:
        self._left = LeftBehind() if left is None else left
        self._lookouts = lookouts or Lookouts(False)
        self._peer = peer
        self._epoch = epoch
        self._host = host
        self._port = port
        self._reporter = reporter
        self._tally = tally
        self._tls = tls
        self._source = source
        self._keeper = keeper
        if keeper is not None:
            keeper.on_retire(self._retire)
        self._retired = False  # its streams close as soon as they are idle
        self._lanes: Lanes[Job] = Lanes()
        self._lock = threading.Lock()  # over lanes, streams and those without work
        self._background_on: Stream | None = None  # the others are for the foreground
        self._idle: list[threading.Condition] = []  # a stream each; the last had work last
        self._streams: dict[Stream, threading.Thread] = {}
        self._threads: list[threading.Thread] = []  # may still be ending
        self._closed = False
        self._express: ExpressStream | None = None
        self._connecting: ExpressStream | None = None
        self._express_after_s = 0.0  # not tried again before
        self._sweep: asyncio.TimerHandle | None = None

    def start(self, job: Job) -> None:
        """Takes the job. Never blocks. Once closed, fails it."""
        if self._keeper is not None:
            self._keeper.used()
        if fits(job) and self._tls is None and self._start_express(job):
            return
        with self._lock:
            if not self._closed:
                self._lanes.put(job, job.priority, time.monotonic())
                if self._idle:
                    self._idle.pop().notify()
                elif len(self._streams) < STREAMS_PER_PEER:
                    self._open_stream()
                return
        if job.claim():
            failed = PathFailed(PeerLost("the transfer engine is closed"))
            self._reporter.report(job, failed, self.name)

    def take_back(self, job: Job) -> bool:
        with self._lock:
            return not job.claimed and self._lanes.remove(job)

    def _open_stream(self) -> None:
        address = (self._host, self._port)
        stream = Stream(
            self._peer,
            self._epoch,
            address,
            self._end,
            self._tls,
            self._source,
            self._left,
            self._lookouts.bulk,
            self._lookouts.flows,
        )
        name = f"moonpool-tcp-{self._peer}-{len(self._streams)}"
        thread = threading.Thread(target=self._run, args=(stream,), name=name, daemon=True)
        thread.start()  # waits for our lock before it is done: nothing counts on it if this raises
        self._streams[stream] = thread
        self._retired = False
        if self._keeper is not None:
            self._keeper.opened()
        self._threads = [t for t in self._threads if t.is_alive()]
        self._threads.append(thread)

    def _end(self, job: Job, error: Exception | None) -> None:
        self._reporter.report_from_thread(job, error, self.name)

    # The stream for small jobs. All but `_connect` on the loop.

    def _start_express(self, job: Job) -> bool:
        """False when the job must go the common way. The first ones always do: they show that the
        peer is there."""
        express = self._express
        if express is not None and express.has_room(job) and job.claim():
            express.start(job)
            return True
        wanted = express is None and self._connecting is None and self._streams
        if wanted and not self._closed and time.monotonic() >= self._express_after_s:
            self._connect_express()
        return False

    def _connect_express(self) -> None:
        address = (self._host, self._port)
        express = ExpressStream(
            self._peer,
            self._epoch,
            address,
            self._end_on_loop,
            self._express_gone,
            self._source,
            self._left,
            self._lookouts.small,
        )
        loop = asyncio.get_running_loop()
        name = f"moonpool-tcp-{self._peer}-express"
        thread = threading.Thread(
            target=self._connect, args=(express, loop), name=name, daemon=True
        )
        thread.start()
        self._connecting = express
        self._threads.append(thread)

    def _connect(self, express: ExpressStream, loop: asyncio.AbstractEventLoop) -> None:
        connected = False
        try:
            express.connect()
            connected = True
        except (ConnectFailed, StreamBroken, OSError):
            pass  # it is tried again in time
        except Exception:  # top of a thread: the path waits for what it says
            log.exception("express stream to %s failed", self._peer)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the path with it
            loop.call_soon_threadsafe(self._connected, express, connected)

    def _connected(self, express: ExpressStream, well: bool) -> None:
        self._connecting = None
        if not well or self._closed or self._retired:
            express.close()
            self._express_after_s = time.monotonic() + EXPRESS_AGAIN_S
            return
        express.open()
        self._express = express
        self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._sweep_express)

    def _sweep_express(self) -> None:
        express = self._express
        if express is None:
            return
        idle_s = express.idle_s(time.monotonic())
        if idle_s >= IDLE_S:
            express.break_off("idle")
        else:
            again_s = IDLE_S - idle_s
            self._sweep = asyncio.get_running_loop().call_later(again_s, self._sweep_express)

    def _express_gone(self, express: ExpressStream, reason: str) -> None:
        if express is self._express:
            self._express = None
            if self._keeper is not None and not self._streams:
                self._keeper.closed()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if express.in_flight:
            self._tally.add("tcp.streams_broken")

    def _end_on_loop(self, job: Job, error: Exception | None) -> None:
        self._reporter.report(job, error, self.name)

    # On a stream's thread.

    def _run(self, stream: Stream) -> None:
        failure: MoonpoolError | None = None
        connected = False
        try:
            stream.connect()
            connected = True
            self._pump(stream)
        except ConnectFailed as error:
            failure = error.cause
            self._tally.add("tcp.connects_failed")
        except (StreamBroken, OSError) as error:
            self._tally.add("tcp.streams_broken")
            stream.fail_all(str(error), error)
        except Exception as error:  # top of a thread: jobs must end, whatever happens
            log.exception("tcp stream to %s failed", self._peer)
            self._tally.add("tcp.streams_broken")
            bug = BugError(f"tcp failed: {error!r}")
            stream.fail_all(str(bug))
            failure = None if connected else bug
        finally:
            stream.close()
            self._leave(stream, failure)

    def _pump(self, stream: Stream) -> None:
        """Until idle for long. Raises StreamBroken."""
        while True:
            job = self._next(stream)
            try:
                if job is not None:
                    if job.claim():
                        stream.send(job)
                elif stream.in_flight:
                    stream.receive()
                else:
                    return
            except OSError:
                raise
            except Exception as error:
                stream.blame(job, BugError(f"tcp failed: {error!r}"))
                raise

    def _next(self, stream: Stream) -> Job | None:
        """A job that may be sent now. None: first take a reply, or go (then the stream is no
        longer counted on)."""
        bell = threading.Condition(self._lock)
        with self._lock:
            while True:
                if self._background_on is stream and not stream.in_flight:
                    self._background_on = None
                background = self._background_on in (None, stream)
                job = self._lanes.take(time.monotonic(), background=background)
                if job is not None:
                    if stream.can_send(job):
                        if job.priority is Priority.BACKGROUND:
                            self._background_on = stream
                        return job
                    self._lanes.put_back(job, job.priority, time.monotonic())
                    return None
                if stream.in_flight:
                    return None
                if self._closed:
                    return None
                if self._retired:
                    self._streams.pop(stream, None)
                    return None
                self._idle.append(bell)
                woken = bell.wait(IDLE_S)
                if bell in self._idle:
                    self._idle.remove(bell)
                if not woken and not len(self._lanes):
                    self._streams.pop(stream, None)
                    return None

    def _leave(self, stream: Stream, failure: MoonpoolError | None) -> None:
        """The stream is over. Jobs that wait get another, or learn why none can be made."""
        with self._lock:
            self._streams.pop(stream, None)
            if self._background_on is stream:
                self._background_on = None
                self._wake_all()
            jobs: list[Job] = []
            if failure is not None or self._closed:
                if not self._streams:
                    jobs = self._lanes.drain()
            elif len(self._lanes) and not self._streams:
                self._open_stream()
            unused = not self._streams and self._express is None
        if unused and self._keeper is not None:
            self._keeper.closed()
        final = failure is not None and not isinstance(failure, PeerLost)
        for job in jobs:
            if job.claim():
                cause = failure or PeerLost("the transfer engine is closed")
                self._end(job, cause if final else PathFailed(cause))

    # For the pool of endpoints, on the loop.

    def _retire(self) -> None:
        """Others need the room: what is idle closes now, what works when it is done."""
        with self._lock:
            self._retired = True
            self._wake_all()
        express = self._express
        if express is None:
            return
        if express.in_flight:
            asyncio.get_running_loop().call_later(RETIRE_LOOK_S, self._retire_express)
        else:
            express.break_off("made room for other peers")

    def _wake_all(self) -> None:
        """With the lock held: they see that they should go."""
        while self._idle:
            self._idle.pop().notify()

    def _retire_express(self) -> None:
        if self._retired and not self._closed:
            self._retire()

    # From anywhere.

    @property
    def streams(self) -> int:
        return len(self._streams) + (self._express is not None)

    @property
    def has_express(self) -> bool:
        return self._express is not None

    @property
    def waiting(self) -> int:
        return len(self._lanes)

    def close(self) -> list[threading.Thread]:
        """On the loop: cuts every stream; the caller joins the threads."""
        with self._lock:
            self._closed = True
            streams = list(self._streams)
            self._wake_all()
        for stream in streams:
            stream.shut()
        if self._connecting is not None:
            self._connecting.shut()
        if self._express is not None:
            self._express.break_off("the transfer engine is closed")
        return self._threads
