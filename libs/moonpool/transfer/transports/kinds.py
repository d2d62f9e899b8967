"""Every transport by its name."""

from collections.abc import Callable, Collection, Mapping

from moonpool.messages.segments import RegionGrant
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.job import Job
from moonpool.transfer.transports.base import Path, Surroundings, Transport
from moonpool.transfer.transports.memory import MemoryTransport
from moonpool.transfer.transports.rdma import RdmaTransport
from moonpool.transfer.transports.shm import ShmTransport
from moonpool.transfer.transports.tcp import TcpTransport

ONE_SIDED = {"rdma"}  # the owner's processor never sees the bytes, so it vouches for none
KINDS: dict[str, Callable[[Surroundings], Transport]] = {
    "memory": MemoryTransport,
    "shm": ShmTransport,
    "rdma": RdmaTransport,
    "tcp": TcpTransport,
}


def paths_to(
    grant: RegionGrant, transports: Mapping[str, Transport], unavailable: Collection[str]
) -> list[Path]:
    """All that lead to the owner of `grant`, best first."""
    found: list[Path] = []
    for kind, transport in transports.items():
        endpoints = [end for end in grant.endpoints if end.transport == kind]
        if endpoints and kind not in unavailable:
            found += transport.paths(grant, endpoints)
    return found


def path_of(job: Job) -> Path:
    """That it tries next. Raises BadTransfer when none is left that can compare checksums."""
    paths = job.remote.paths
    while job.checked and paths[job.at_path].name in ONE_SIDED:
        job.at_path += 1
        if job.at_path >= len(paths):
            where = job.remote.grant.segment
            raise BadTransfer(f"no path to {where} can compare checksums")
    return paths[job.at_path]
