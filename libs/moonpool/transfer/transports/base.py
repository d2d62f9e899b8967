"""The seam below the engine: one transport moves slices between our memory and a peer's.

A transport has two sides. As owner it listens and serves peers, asking the region table before it
touches memory. As client it gives the engine a `Path` per peer. Promises that the contract suite
checks: every job given to a path ends in exactly one `report`, and after that report nothing of the
transport touches the job's memory any more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Protocol

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.job import Job
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.tally import Tally
from moonpool.transfer.tls import Tls
from moonpool.transfer.topology import Topology
from moonpool.transfer.transports.endpoint_pool import EndpointPool
from moonpool.transfer.transports.fences import Fences, Owners


class TransportUnavailable(Exception):
    """This host cannot run the transport; the text says why. The engine goes on without it."""


class Reporter(Protocol):
    def report(self, job: Job, error: Exception | None, path: str) -> None:
        """The job has ended: None is success, PathFailed asks for another path, anything else is
        final. On the loop's thread it takes effect at once."""

    def report_from_thread(self, job: Job, error: Exception | None, path: str) -> None:
        """The same from any thread."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engine gives every transport."""

    name: str
    host_id: str
    run_dir: FilePath
    listen_host: str
    advertise_host: str
    table: RegionTable
    reporter: Reporter
    loop: asyncio.AbstractEventLoop
    tally: Tally
    endpoints_max: int = 0  # peers that one transport is connected to at once; 0: its default
    endpoint_eviction: str = "sieve"  # which connection goes when there are more
    look_out: bool = True  # for what is expected soon, before sleeping: see `lookout.py`
    tls: Tls | None = None  # of tcp; None: bytes travel as they are
    rdma_device: str = ""  # which adapters rdma uses, see `rdma_choice`
    topology: Topology = field(default_factory=Topology)
    fences: Fences = field(default_factory=Fences)  # against what peers gave up, on any transport
    owners: Owners = field(default_factory=Owners)  # what we gave up, on any transport

    def endpoint_pool(self) -> EndpointPool:
        """A pool for one transport. Raises BadTransfer."""
        try:
            return EndpointPool(self.endpoint_eviction, self.endpoints_max)
        except ValueError as error:
            raise BadTransfer(str(error)) from error


class Path(Protocol):
    """One way to one peer. Belongs to the loop, like everything that does not say otherwise."""

    @property
    def name(self) -> str:
        """The transport's name."""

    @property
    def ways(self) -> int:
        """How many NICs share the work: 1 unless it is a `SprayedPath`."""

    def start(self, job: Job) -> None:
        """Takes the job. Never blocks."""


class Transport(Protocol):
    @property
    def name(self) -> str: ...

    async def listen(self) -> list[Endpoint]:
        """Serves peers from now on. Raises TransportUnavailable, BadTransfer."""

    def paths(self, grant: RegionGrant, endpoints: Sequence[Endpoint]) -> Sequence[Path]:
        """To the owner of `grant`, best first; none when this transport cannot reach it.
        `endpoints`: all of the grant's that are this transport's, at least one."""

    def stats(self) -> dict[str, float]: ...

    async def close(self) -> None:
        """Ends everything, reports every job it still has. No thread, socket or file stays."""
