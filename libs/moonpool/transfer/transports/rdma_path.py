"""The client's side of rdma: one path per peer and adapter, with a queue, a thread and a link.

The thread posts, reaps and listens to the owner; bytes move without it. While completions come
quickly it looks for them without sleeping; otherwise it sleeps until the adapter, the owner or a
new job wakes it.
"""

import contextlib
import os
import select
import socket
import threading
import time

from moonpool.messages.errors import BugError, MoonpoolError
from moonpool.transfer.base import Op
from moonpool.transfer.errors import PeerLost, TransferBusy
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.lanes import Lanes
from moonpool.transfer.resting import Rest
from moonpool.transfer.tally import Tally
from moonpool.transfer.transports.base import Reporter
from moonpool.transfer.transports.endpoint_pool import EndpointPool
from moonpool.transfer.transports.fences import LeftBehind
from moonpool.transfer.transports.rdma_chain import Chain
from moonpool.transfer.transports.rdma_control import Control
from moonpool.transfer.transports.rdma_device import Device
from moonpool.transfer.transports.rdma_grants import Grants, ask_of, refusal
from moonpool.transfer.transports.rdma_link import QUEUES, Link, LinkBroken, LinkRefused
from moonpool.transfer.transports.rdma_patience import Patience
from moonpool.transfer.transports.rdma_wire import Ask, Granted, Withdrawn
from moonpool.transfer.wire import BadFrame, Status, refused

HANDSHAKE_S = 5.0
IDLE_S = 30.0  # a link without work closes
FLYING_BYTES_MAX = 32 << 20  # of one link: what is posted can no longer be overtaken


class RdmaPath:
    """Reconnects by itself. A link that breaks takes its flights along: they are tried again."""

    name = "rdma"
    ways = 1

    def __init__(
        self,
        device: Device,
        peer: str,
        epoch: str,
        address: tuple[str, int, str],
        reporter: Reporter,
        tally: Tally,
        pool: EndpointPool,
        left: LeftBehind,
    ) -> None:
        """`left`: what was given up at this owner, on whichever way."""
        self._pool = pool
        self._left = left
        self._device = device
        self._peer = peer
        self._epoch = epoch
        self._address = address  # host, port, adapter
        self._reporter = reporter
        self._tally = tally
        self._lock = threading.Lock()
        self._lanes: Lanes[Job] = Lanes()
        self._cuts: list[Job] = []
        self._wake_fd = -1
        self._thread: threading.Thread | None = None
        self._threads: list[threading.Thread] = []  # may still be ending
        self._sock: socket.socket | None = None
        self._closed = False
        self._retired = False
        self._rest = Rest()
        # Of the thread.
        self._link: Link | None = None
        self._poller: select.poll
        self._grants = Grants()

    # On the loop.

    def start(self, job: Job) -> None:
        """Takes the job. Never blocks."""
        self._pool.used(self)
        with self._lock:
            if not self._closed and not (job.elsewhere and self._rest.now(time.monotonic())):
                self._lanes.put(job, job.priority, time.monotonic())
                if self._thread is None:
                    self._open_thread()
                else:
                    self._wake()
                return
            why = "the transfer engine is closed" if self._closed else f"{self._peer} rests"
        if job.claim():
            self._reporter.report(job, PathFailed(PeerLost(why)), self.name)

    def _open_thread(self) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        name = f"moonpool-rdma-{self._peer}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()]
        self._threads.append(self._thread)
        self._thread.start()

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    # From any thread.

    def take_back(self, job: Job) -> bool:
        with self._lock:
            return not job.claimed and self._lanes.remove(job)

    def cut(self, job: Job) -> None:
        with self._lock:
            self._cuts.append(job)
            self._wake()

    def retire(self) -> None:
        """Close the link as soon as nothing is under way on it: others need the room."""
        with self._lock:
            self._retired = True
            self._wake()

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def waiting(self) -> int:
        return len(self._lanes)

    @property
    def resting(self) -> bool:
        return self._rest.now(time.monotonic())

    def close(self) -> list[threading.Thread]:
        """Breaks the link; the caller joins the thread."""
        with self._lock:
            self._closed = True
            self._wake()
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
            return self._threads

    # On the thread.

    def _run(self) -> None:
        chain = Chain(self._device.verbs)
        self._poller = select.poll()
        self._poller.register(self._wake_fd, select.POLLIN)
        patience = Patience()
        try:
            while not self._leaving():
                try:
                    self._turn(chain, patience)
                except LinkBroken as broken:
                    self._break(broken)
        except Exception as error:  # noqa: BLE001  top of a thread: jobs must end, whatever happens
            self._leave(BugError(f"rdma failed: {error!r}"))
        finally:
            chain.close()

    def _leaving(self) -> bool:
        """True when this thread is over; whoever starts a job from then on makes another."""
        with self._lock:
            closed = self._closed
            if not closed and (self._link is not None or len(self._lanes)):
                return False
            if not closed:
                self._forget_thread()
                return True
        self._leave(PathFailed(PeerLost("the transfer engine is closed")))
        return True

    def _leave(self, error: Exception) -> None:
        """Ends everything with `error`."""
        self._drop_link(error, None)
        with self._lock:
            self._forget_thread()
            jobs = self._lanes.drain()
        for job in jobs:
            self._end_waiting(job, error)

    def _forget_thread(self) -> None:
        os.close(self._wake_fd)
        self._wake_fd = -1
        self._thread = None

    def _turn(self, chain: Chain, patience: Patience) -> None:
        """One round. Raises LinkBroken."""
        self._take_cuts()
        job = self._next()
        while job is not None:
            self._begin(job, chain)
            job = self._next()
        if self._link is not None and not self._reap(self._link):
            self._wait(self._link, patience)

    def _next(self) -> Job | None:
        link = self._link
        if link is not None and not (link.room and link.bytes_flying < FLYING_BYTES_MAX):
            return None
        with self._lock:
            while not self._closed and (job := self._lanes.take(time.monotonic())) is not None:
                if not job.claimed:
                    return job
        return None

    def _take_cuts(self) -> None:
        with self._lock:
            cuts, self._cuts = self._cuts, []
        flying = {flight.job: flight for flight in self._link.flights} if self._link else {}
        for job in cuts:
            if job in flying:
                raise LinkBroken("a transfer was stopped", flying[job], path_failed=False)

    def _begin(self, job: Job, chain: Chain) -> None:
        ask = ask_of(job.remote.grant)
        if self._link is None and not self._connect(job, ask, chain):
            return
        granted = self._grants.find(ask)
        if granted is not None:
            self._fly(job, granted)
        elif self._grants.park(ask, job) and self._link is not None:
            self._link.ask(ask)

    def _connect(self, job: Job, ask: Ask, chain: Chain) -> bool:
        """A link, and the answer to `ask`. False when there is none; `job` has then ended."""
        device = self._device
        try:
            if not device.active:
                raise LinkRefused(PeerLost(f"the link of {device.name} is down"))
            link = self._new_link(chain)
            try:
                granted = link.connect(self._address[2], ask, time.monotonic() + HANDSHAKE_S)
            except BaseException:
                link.close()
                raise
        except (LinkRefused, OSError, BadFrame, device.verbs.error) as error:
            self._tally.add("rdma.connects_failed")
            self._no_link(job, error)
            return False
        if granted.status != Status.OK:
            link.close()
            self._end_waiting(job, refusal(self._peer, granted))
            return False
        self._link = link
        self._retired = False
        self._pool.opened(self)
        self._poller.register(link.control, select.POLLIN)
        if link.event_fd >= 0:
            self._poller.register(link.event_fd, select.POLLIN)
        self._grants.remember(granted, job.remote.grant.expires_unix_s)
        return True

    def _new_link(self, chain: Chain) -> Link:
        """With its socket connected. Raises OSError, pyverbs' error."""
        host, port, _ = self._address
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            with self._lock:
                self._sock = sock
                if self._closed:
                    raise OSError("closed")
            sock.settimeout(HANDSHAKE_S)
            sock.connect(address)
            return Link(self._device, chain, self._peer, self._epoch, Control(sock), self._left)
        except BaseException:
            sock.close()
            raise

    def _no_link(self, job: Job, error: Exception) -> None:
        """All that wait try another path, or hear what is final."""
        where = f"{self._peer} at {self._address[0]}:{self._address[1]}"
        cause: MoonpoolError = PeerLost(f"{where} over rdma: {error}")
        if isinstance(error, LinkRefused):
            cause = error.cause
        with self._lock:
            if isinstance(cause, PeerLost):
                self._rest.failed(time.monotonic())
            jobs = [job, *self._lanes.drain()]
        for each in jobs:
            self._end_waiting(each, PathFailed(cause) if isinstance(cause, PeerLost) else cause)

    def _fly(self, job: Job, granted: Granted) -> None:
        assert self._link is not None
        if not job.claim():
            return
        job.runner = self
        error: Exception | None = job.stopped
        if ("r" if job.op is Op.READ else "w") not in granted.rights:
            error = refused(self._peer, "rights")
        if error is None:
            try:
                self._link.start(job, granted)
                return
            except TransferBusy as busy:
                error = PathFailed(busy)
        self._end(job, error)

    def _reap(self, link: Link) -> bool:
        """True when something had come."""
        return link.reap(self._arrived)

    def _arrived(self, job: Job) -> None:
        self._rest.worked()
        self._end(job, None)

    def _wait(self, link: Link, patience: Patience) -> None:
        if link.flights and patience.look(lambda: self._reap(link)):
            return
        if link.flights:
            link.arm()
            if self._reap(link):
                return
        timeout_s = IDLE_S
        if link.flights and link.event_fd < 0:
            timeout_s = 0.001
        ready = dict(self._poller.poll(timeout_s * 1000))
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        if link.event_fd in ready:
            link.take_event()
        if link.control.fileno() in ready:
            self._hear(link)
        if (not ready or self._retired) and not link.flights and not self._grants.asked:
            self._drop_link(PathFailed(PeerLost("idle")), None)

    def _hear(self, link: Link) -> None:
        for message in link.heard():
            if isinstance(message, Withdrawn):
                self._grants.withdraw(message)
            elif isinstance(message, Granted):
                self._answered(message)
            else:
                raise LinkBroken(f"the peer sent {type(message).__name__}")

    def _answered(self, granted: Granted) -> None:
        if granted.status == Status.OK and len(granted.keys) != QUEUES:
            raise LinkBroken("the peer gave too few keys")
        jobs = self._grants.answered(granted)
        if granted.status != Status.OK:
            self._grants.forget(granted.ask)
            for job in jobs:
                self._end_waiting(job, refusal(self._peer, granted))
            return
        if jobs:
            self._grants.remember(granted, jobs[0].remote.grant.expires_unix_s)
        with self._lock:
            for job in reversed(jobs):
                self._lanes.put_back(job, job.priority, time.monotonic())

    # Ends.

    def _break(self, broken: LinkBroken) -> None:
        self._tally.add("rdma.links_broken")
        if broken.path_failed:
            with self._lock:
                self._rest.failed(time.monotonic())
        culprit = broken.culprit.job if broken.culprit is not None else None
        cause = PeerLost(f"{self._peer} over rdma: {broken}")
        free = culprit is None and not broken.path_failed
        self._drop_link(PathFailed(cause, collateral=free), culprit)

    def _drop_link(self, error: Exception, culprit: Job | None) -> None:
        """Ends the link and all jobs on it; those that only share it with `culprit` do not pay."""
        link, self._link = self._link, None
        if link is None:
            return
        self._pool.closed(self)
        self._poller.unregister(link.control)
        if link.event_fd >= 0:
            self._poller.unregister(link.event_fd)
        with self._lock:
            self._sock = None
        waiting = list(self._grants.clear())
        lost = link.close()
        if link.close_failures:
            self._tally.add("rdma.close_failures", link.close_failures)
        for flight in lost:
            if culprit is not None and flight.job is not culprit and isinstance(error, PathFailed):
                self._end(flight.job, PathFailed(error.cause, collateral=True))
            else:
                self._end(flight.job, error)
        for job in waiting:
            self._end_waiting(job, error)

    def _end_waiting(self, job: Job, error: Exception) -> None:
        if job.claim():
            self._end(job, error)

    def _end(self, job: Job, error: Exception | None) -> None:
        self._reporter.report_from_thread(job, error, self.name)
