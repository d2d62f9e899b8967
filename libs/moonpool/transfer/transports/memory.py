"""Engines of one process: the asking side copies, under the same checks as over any wire.

The seam's in-memory implementation: for programs that embed both sides, and for tests that need no
socket. Ask for it by name; it reaches nothing outside this process.
"""

import asyncio
import os
import secrets
from collections.abc import Sequence

from moonpool.messages.errors import BugError
from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.base import Op
from moonpool.transfer.copying import copy_slice
from moonpool.transfer.errors import GrantRefused, PeerLost
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.slices import plain, shifted
from moonpool.transfer.transports.base import Reporter, Surroundings
from moonpool.transfer.transports.joining import join_all
from moonpool.transfer.transports.pool import CopyPool, Whole
from moonpool.transfer.wire import refused

COPY_THREADS_MAX = 2
PATHS_MAX = 256
_served: dict[str, RegionTable] = {}  # by address: who in this process can be reached now


class MemoryTransport:
    name = "memory"

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._address = f"{os.getpid()}/{secrets.token_hex(8)}"
        self._pool = CopyPool(around.name, COPY_THREADS_MAX, around.loop)
        self._paths: dict[tuple[str, str], MemoryPath] = {}  # by address and epoch

    async def listen(self) -> list[Endpoint]:
        _served[self._address] = self._around.table
        return [Endpoint(self.name, self._address)]

    def paths(self, grant: RegionGrant, endpoints: Sequence[Endpoint]) -> list["MemoryPath"]:
        found = (self._path(grant, endpoint) for endpoint in endpoints)
        return [path for path in found if path is not None]

    def _path(self, grant: RegionGrant, endpoint: Endpoint) -> "MemoryPath | None":
        if not endpoint.address.startswith(f"{os.getpid()}/"):
            return None
        key = (endpoint.address, grant.epoch)
        if key not in self._paths:
            if len(self._paths) >= PATHS_MAX:
                self._paths = {k: p for k, p in self._paths.items() if k[0] in _served}
            around = self._around
            self._paths[key] = MemoryPath(grant.segment, *key, self._pool, around.reporter)
        return self._paths[key]

    def stats(self) -> dict[str, float]:
        return {"paths": len(self._paths), "copies_waiting": self._pool.waiting}

    async def close(self) -> None:
        _served.pop(self._address, None)
        await join_all(self._pool.close())
        await asyncio.sleep(0)  # reports of those threads


class MemoryPath:
    name = "memory"
    ways = 1

    def __init__(
        self, peer: str, address: str, epoch: str, pool: CopyPool, reporter: Reporter
    ) -> None:
        self._peer = peer
        self._address = address
        self._epoch = epoch
        self._pool = pool
        self._reporter = reporter

    def start(self, job: Job) -> None:
        """Takes the job. Never blocks longer than one small copy."""
        if job.inline:
            if job.claim():
                self._reporter.report(job, self._copied(job), self.name)
            return
        self._pool.put(Whole(lambda: self._run_on_thread(job)), job.priority)

    def _run_on_thread(self, job: Job) -> None:
        if job.claim():
            self._reporter.report_from_thread(job, self._copied(job), self.name)

    def _copied(self, job: Job) -> Exception | None:
        try:
            return self._copy(job)
        except Exception as error:  # noqa: BLE001  every job must end
            return BugError(f"copy failed: {error!r}")

    def _copy(self, job: Job) -> Exception | None:
        """Why the copy does not count; None when every byte is where it belongs."""
        table = _served.get(self._address)
        if table is None:
            return PathFailed(PeerLost(f"{self._peer} went away"))
        if table.epoch != self._epoch:
            return table.refuse("epoch")
        piece, grant = job.slice, job.remote.grant
        gone = refused(self._peer, "unknown")
        offsets, lengths = shifted(piece.remote, grant.offset), plain(piece.lengths)
        right = "r" if job.op is Op.READ else "w"
        try:
            held, _ = table.enter(
                grant.region, grant.key, right, offsets, lengths, lambda: job.cut(gone)
            )
        except GrantRefused as refusal:
            return refusal
        try:
            end = copy_slice(job, held.region.address, self._peer)
            return job.stopped if end is None else end
        finally:
            table.leave(held)
