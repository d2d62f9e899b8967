"""`TransferEngine`: what programs use. It chooses paths, retries on others and keeps deadlines."""

import asyncio
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path as FilePath
from threading import get_ident
from typing import Self
from weakref import WeakSet, WeakValueDictionary

from moonpool.messages.errors import BugError, CallerError, MoonpoolError
from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import arguments, memory
from moonpool.transfer.background import Background
from moonpool.transfer.base import Op, Priority, TransferRequest
from moonpool.transfer.batch import TransferBatch
from moonpool.transfer.buffers import BufferPool
from moonpool.transfer.errors import BadTransfer, RegionClosed, TransferBusy
from moonpool.transfer.job import COLLISIONS_MAX, Job, PathFailed
from moonpool.transfer.latencies import Latencies
from moonpool.transfer.line_desk import LineDesk
from moonpool.transfer.mapping import MappedView, mapper_of
from moonpool.transfer.pages import THREADS_MAX, Progress, beside_the_loop, prepare
from moonpool.transfer.path_log import PathLog
from moonpool.transfer.planning import plan
from moonpool.transfer.regions import LocalRegion, RegionTable
from moonpool.transfer.remote import OpenedGrant
from moonpool.transfer.tally import Tally
from moonpool.transfer.tls import Tls, TlsFiles
from moonpool.transfer.topology import Topology, discover
from moonpool.transfer.transports.base import Path, Surroundings, Transport, TransportUnavailable
from moonpool.transfer.transports.kinds import KINDS, path_of, paths_to

log = logging.getLogger(__name__)
FOREVER_S = math.inf
JOBS_MAX = 65_536  # slices under way in one engine
TRIES_PER_PATH = 2


class TransferEngine:
    """Registered memory of this process, and transfers between it and peers.

    Belongs to the event loop that started it: all methods are called there and nowhere else.
    """

    lines: LineDesk  # for users who speak with owners themselves

    def __init__(self, name: str, epoch: str, host_id: str, checksum: bool = False) -> None:
        """Use `start`."""
        self.name = name
        self._checksum = bool(checksum)
        self.epoch = epoch
        self.unavailable: dict[str, str] = {}  # transport -> why this host cannot run it
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._tally = Tally()
        self._path_log = PathLog(name)
        self._table = RegionTable(name, epoch, host_id)
        self._transports: dict[str, Transport] = {}
        self._opened: WeakValueDictionary[bytes, OpenedGrant] = WeakValueDictionary()
        self._views: WeakSet[MappedView] = WeakSet()
        self._jobs: set[Job] = set()
        self._background = Background(self._jobs, self._go)
        self._behind = self._background.mine  # every transfer looks whether there is any
        self._ended: deque[tuple[Job, Exception | None, str]] = deque()
        self._wake_pending = False
        self._closed = False

    @classmethod
    async def start(
        cls,
        name: str,
        *,
        host_id: str,
        run_dir: str | FilePath,
        listen_host: str = "127.0.0.1",
        advertise_host: str = "",
        transports: Sequence[str] = ("shm", "rdma", "tcp"),
        rdma_device: str = "",
        checksum: bool = False,
        tls: TlsFiles | None = None,
        topology: Topology | None = None,
        endpoints_max: int = 0,
        endpoint_eviction: str = "sieve",
        look_out: bool = True,
    ) -> Self:
        """Listens and is ready. `run_dir` must exist; `listen_host` is an address or an interface,
        or several with commas between, which are then NICs used together; `advertise_host` is what
        peers connect to when that is a wildcard, one for each of several; `topology` says which
        NICs are near which memory, by default what sysfs says; `rdma_device` names adapters,
        "device:port:gid" with commas between, all that are active if empty; `checksum` is for
        transfers that do not say themselves; with `tls`, tcp is spoken to peers that have it too,
        and rdma to none; `endpoints_max` peers are connected to at once over each transport (0: its
        default), and beyond them one goes by `endpoint_eviction`, "sieve" or "fifo"; `look_out`:
        small transfers look for what is expected within 0.1 ms before they sleep. Raises
        BadTransfer when the name is taken in `run_dir`, a host cannot be listened on, or a
        transport is unknown."""
        arguments.check_start(name, host_id, listen_host, transports)
        engine = cls(name, secrets.token_hex(8), host_id, checksum)
        around = Surroundings(
            name=name,
            host_id=host_id,
            run_dir=FilePath(run_dir),
            listen_host=listen_host,
            advertise_host=advertise_host,
            table=engine._table,
            reporter=engine,
            loop=engine._loop,
            tally=engine._tally,
            rdma_device=rdma_device,
            topology=topology if topology is not None else discover(),
            endpoints_max=endpoints_max,
            endpoint_eviction=endpoint_eviction,
            look_out=look_out,
            tls=Tls(tls) if tls is not None else None,
        )
        engine._table.topology = around.topology
        engine.lines = LineDesk(around.table, around.loop, transports, tls, around.tally, look_out)
        try:
            for kind in transports:
                await engine._add(kind, around)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _add(self, kind: str, around: Surroundings) -> None:
        if kind not in KINDS:
            raise BadTransfer(f"transport {kind!r} is none of {sorted(KINDS)}")
        if kind == "rdma" and around.tls is not None:
            self.unavailable[kind] = "tls is asked for, and rdma does not encrypt"
            return
        transport = KINDS[kind](around)
        self._transports[kind] = transport
        try:
            self._table.endpoints += await transport.listen()
        except TransportUnavailable as error:
            self.unavailable[kind] = str(error)

    @property
    def endpoints(self) -> list[Endpoint]:
        return list(self._table.endpoints)

    # Memory.

    def allocate(self, length: int, location: str = "") -> LocalRegion:
        """New zeroed memory of the host that every transport can reach (a sealed memfd mapping),
        until `unregister` or `close`, whoever still refers to it. `location`: what it is near to,
        for the choice of NICs: "cpu:N", "cuda:N" or "". Raises BadTransfer, OSError when the
        kernel has no room."""
        self._check_open()
        arguments.check_location(location)
        return self._table.add(memory.allocate(length), location)

    def register_memory(self, buffer: object, location: str = "") -> LocalRegion:
        """Memory of the caller's: numpy, torch on the CPU, mmap, bytearray, SharedMemory, or a pair
        (address, length) that the caller keeps alive. Peers do not reach it through shm, since it
        lies in no shareable file; over tcp and rdma they do. Raises BadTransfer."""
        self._check_open()
        arguments.check_location(location)
        return self._table.add(memory.wrap(buffer), location)

    def make_pool(self, size_bytes: int, location: str = "") -> BufferPool:
        """Small buffers out of one region of its own, which goes with `pool.region.unregister`.
        Raises like `allocate`."""
        return BufferPool(self.allocate(size_bytes, location))

    async def prepare(
        self, region: LocalRegion, progress: Progress | None = None, *, threads: int = THREADS_MAX
    ) -> None:
        """Makes all pages of a region be there, in pieces and by several threads; `progress` hears
        bytes done and bytes in all. Then adapters pin it. Never needed, but else the first transfer
        has to wait for all that. Raises OSError without memory, TransferBusy (adapters)."""
        self._check_open()
        await prepare(region.memory, progress, threads)
        await beside_the_loop([partial(pin, region) for pin in self._table.pins])

    # Transfers.

    def open(self, grant: RegionGrant) -> OpenedGrant:
        """The peer's range. Nothing is connected yet. Raises BadTransfer when no transport of ours
        reaches the peer, or the grant says what no owner issues."""
        self._check_open()
        known = self._opened.get(grant.key) if type(grant.key) is bytes else None
        if known is not None and known.grant == grant:
            return known
        arguments.check_grant(grant)
        paths = paths_to(grant, self._transports, self.unavailable)
        if not paths:
            offered = ", ".join(e.transport for e in grant.endpoints) or "nothing"
            raise BadTransfer(
                f"no common transport with {grant.segment}: it offers {offered}, "
                f"we run {', '.join(self._transports) or 'nothing'}"
            )
        opened = OpenedGrant(grant, paths, self._table)
        self._opened[grant.key] = opened
        return opened

    async def map_remote(
        self, remote: OpenedGrant, *, lease_s: float = 30.0, deadline_s: float = 5.0
    ) -> MappedView:
        """The peer's range, read in place, for `lease_s` at most and no longer than its grant.
        Raises BadTransfer where the two share no memory, GrantRefused, PeerLost, TransferTimeout,
        RegionClosed."""
        self._check_open()
        lease_s = arguments.seconds(lease_s, "lease_s", above_zero=False)
        path = mapper_of(remote)
        look = self.register_memory(bytearray(1))  # a read attaches, under all the usual checks
        try:
            only = OpenedGrant(remote.grant, [path], self._table)
            one_byte = TransferRequest(Op.READ, look, 0, only, 0, 1)
            await self.submit([one_byte], deadline_s=deadline_s, checksum=False)
        finally:
            await look.unregister()
        view = MappedView(remote, path.hold(remote), lease_s, self._loop)
        self._views.add(view)
        return view

    def submit(
        self,
        requests: Sequence[TransferRequest],
        *,
        priority: Priority = Priority.FOREGROUND,
        deadline_s: float = 10.0,
        checksum: bool | None = None,
    ) -> TransferBatch:
        """Starts all requests; order among them is undefined. Never blocks longer than a copy of
        a MiB. `checksum`: bytes that were damaged on the way are sent again, and are
        TransferCorrupt when it happens on every path; None: as the engine was started. Raises, and
        then nothing was started: BadTransfer, GrantRefused (rights), RegionClosed, TransferBusy.
        What happens later is told by the batch."""
        self._check_open()
        if get_ident() != self._thread:
            raise BadTransfer("submit was called on another thread than that of the engine's loop")
        if type(priority) is not Priority:
            priority = arguments.priority_of(priority)
        if not (type(deadline_s) is float and 0 < deadline_s < FOREVER_S):
            deadline_s = arguments.seconds(deadline_s, "deadline_s")
        batch = TransferBatch(self._loop, len(requests), deadline_s, self._stop)
        checked = self._checksum if checksum is None else bool(checksum)
        jobs = plan(self._table, batch, requests, priority, checked, time.monotonic() + deadline_s)
        if len(self._jobs) + len(jobs) > JOBS_MAX:
            raise TransferBusy(f"{len(self._jobs)} slices wait already", retry_after_s=0.1)
        batch.begin(jobs)
        self._jobs.update(jobs)
        if priority is Priority.BACKGROUND or self._behind:
            self._background.expect(jobs, priority)
        for job in jobs:
            self._start(job)
        batch.arm()
        return batch

    def _start(self, job: Job) -> None:
        try:
            if job.held is None:
                job.held = self._table.enter_local(job.local, partial(self._unregistered, job))
            path = path_of(job) if job.checked else job.remote.paths[job.at_path]
        except (RegionClosed, BadTransfer) as error:
            self._finish(job, error)
            return
        if job.priority is Priority.BACKGROUND:
            self._background.start(job, path)
        else:
            self._go(job, path)

    def _go(self, job: Job, path: Path) -> None:
        try:
            path.start(job)
        except Exception as error:  # a job that was not taken must end as well
            log.exception("transfer to %s failed over %s", job.remote.grant.segment, path.name)
            if job in self._jobs and (job.claim() or job.inline):
                self._finish(job, BugError(f"{path.name} failed: {error!r}"))

    # What transports report.

    def report(self, job: Job, error: Exception | None, path: str) -> None:
        job.runner = None
        if job.carrier is not None and job.carrier.ended(job, error):
            self._tally.add("retries")
        elif error is None:
            took_s = time.monotonic() - job.started_s
            self._tally.moved(path, job.op.value, job.slice.payload, took_s)
            self._path_log.worked(job.remote.grant, path)
            self._finish(job, None)
        elif job.stopped is not None:
            self._finish(job, job.stopped)
        elif isinstance(error, PathFailed):
            if not error.collateral and not isinstance(error.cause, CallerError):
                self._path_log.failed(job.remote.grant, path, error)
            if job.remote.paths[job.at_path].ways > 1:
                job.tries = TRIES_PER_PATH  # every way of it was tried
            self._retry(job, error)
        else:
            self._finish(job, error)

    def report_from_thread(self, job: Job, error: Exception | None, path: str) -> None:
        self._ended.append((job, error, path))
        if not self._wake_pending:
            self._wake_pending = True
            self._loop.call_soon_threadsafe(self._take_reports)

    def _take_reports(self) -> None:
        self._wake_pending = False
        while self._ended:
            self.report(*self._ended.popleft())

    def _retry(self, job: Job, failed: PathFailed) -> None:
        self._tally.add("retries")
        if failed.collateral and job.collisions < COLLISIONS_MAX:
            job.collisions += 1
        else:
            job.tries += 1
        if job.tries >= TRIES_PER_PATH:
            job.at_path += 1
            job.tries = 0
        if job.at_path >= len(job.remote.paths):
            self._finish(job, failed.cause)
            return
        if job.claimed:
            job.unclaim()
        self._start(job)

    def _stop(self, job: Job, reason: MoonpoolError) -> None:
        """Ends a job that waits, cuts one that runs, leaves one alone that is over."""
        if job not in self._jobs:
            return
        if job.claim():
            job.stopped = reason
            self._finish(job, reason)
        else:
            job.cut(reason)

    def _unregistered(self, job: Job) -> None:
        self._stop(job, RegionClosed("local region is unregistered"))

    def _finish(self, job: Job, error: Exception | None) -> None:
        if job.carrier is not None:
            job.carrier.forget(job)
        if job.held is not None:
            self._table.leave(job.held)
            job.held = None
        self._jobs.discard(job)
        if error is not None:
            self._tally.add(f"failures.{error.code if isinstance(error, MoonpoolError) else 'bug'}")
        job.batch.ended(job, error)
        if self._behind:
            self._background.ended(job)

    # The rest.

    def stats(self) -> dict[str, float]:
        """Sums since start, by transport and direction (`tcp.read.bytes`), and what is open now."""
        out = self._tally.read()
        out.update(self._table.stats())
        out.update(self._path_log.stats())
        for name, transport in self._transports.items():
            out.update({f"{name}.{key}": value for key, value in transport.stats().items()})
        if "tcp" in self._transports:
            out["tcp.streams_served"] += self.lines.served
        out |= {"slices_under_way": len(self._jobs), "background_waiting": self._background.waiting}
        out["views_open"] = sum(view.open for view in self._views)
        return out

    def latencies(self) -> dict[tuple[str, str], Latencies]:
        """Seconds of slices by transport and direction ("read", "write")."""
        return self._tally.latencies()

    async def close(self) -> None:
        """Fails what is under way with RegionClosed, withdraws all memory, ends threads and closes
        sockets. Idempotent. Views of regions stay valid."""
        if self._closed:
            return
        self._closed = True
        gone = RegionClosed("the transfer engine is closed")
        for job in list(self._jobs):
            self._stop(job, gone)
        for view in list(self._views):
            view.end(gone)
        self.lines.close()
        self._background.close()
        await asyncio.gather(*(t.close() for t in self._transports.values()))
        self._take_reports()
        for region in self._table.regions():
            await region.unregister(timeout_s=0.1)

    def _check_open(self) -> None:
        if self._closed:
            raise RegionClosed("the transfer engine is closed")
