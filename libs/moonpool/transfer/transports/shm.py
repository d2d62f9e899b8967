"""Same host: the owner hands its memory over by descriptor, the peer maps it once and copies.

Trust: whoever was given a descriptor has the whole region mapped until the process ends or lets go.
Between processes of one user (the socket has mode 0600) rights and bounds guard against mistakes;
they cannot stop a peer that means harm. Do not offer `shm` to such peers.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path as FilePath
from weakref import WeakValueDictionary

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.transports.base import Surroundings
from moonpool.transfer.transports.joining import join_all
from moonpool.transfer.transports.pool import CopyPool
from moonpool.transfer.transports.shm_link import ShmLink
from moonpool.transfer.transports.shm_owner import ShmOwner

COPY_THREADS_MAX = 4


class ShmTransport:
    name = "shm"

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._path = FilePath(os.path.abspath(around.run_dir)) / f"{around.name}.transfer"
        self._owner = ShmOwner(around.table, self._path, around.tally, around.loop)
        threads = max(1, min(COPY_THREADS_MAX, len(os.sched_getaffinity(0))))
        self._pool = CopyPool(around.name, threads, around.loop)
        self._endpoints = around.endpoint_pool()
        # By address and epoch, for as long as it is connected or a grant uses it.
        self._links: WeakValueDictionary[tuple[str, str], ShmLink] = WeakValueDictionary()

    async def listen(self) -> list[Endpoint]:
        """Raises BadTransfer."""
        if not self._path.parent.is_dir():
            raise BadTransfer(f"run_dir {self._path.parent} does not exist")
        self._owner.listen()
        self._around.table.notifiers.append(self._owner)
        return [Endpoint(self.name, str(self._path))]

    def paths(self, grant: RegionGrant, endpoints: Sequence[Endpoint]) -> list[ShmLink]:
        found = (self._link(grant, endpoint) for endpoint in endpoints)
        return [path for path in found if path is not None]

    def _link(self, grant: RegionGrant, endpoint: Endpoint) -> ShmLink | None:
        if grant.host_id != self._around.host_id:
            return None
        key = (endpoint.address, grant.epoch)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = ShmLink(
                grant.segment,
                grant.epoch,
                FilePath(endpoint.address),
                self._pool,
                self._around.reporter,
                self._around.loop,
                self._endpoints,
            )
        return link

    def stats(self) -> dict[str, float]:
        links = list(self._links.values())
        return {
            **self._owner.stats(),
            "peers_linked": sum(link.connected for link in links),
            "links_retired": self._endpoints.retired,
            "mapped_bytes": sum(link.mapped_bytes for link in links),
            "copies_waiting": self._pool.waiting,
        }

    async def close(self) -> None:
        threads = self._pool.close()
        await join_all(threads)
        await asyncio.sleep(0)  # reports of those threads
        for link in list(self._links.values()):
            link.close()
        self._owner.close()
