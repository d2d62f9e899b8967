"""Between hosts with RDMA adapters: the adapters read and write registered memory by themselves.

A handshake connection (tcp) shows the grant, exchanges queue pairs and hands out keys; from then on
no CPU of the owner's takes part. See docs/decisions for how access is bounded and taken back.
"""

import asyncio
import contextlib
import ipaddress
import socket

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.transports.base import Surroundings
from moonpool.transfer.transports.joining import join_all
from moonpool.transfer.transports.rdma_choice import parse_choices
from moonpool.transfer.transports.rdma_device import Device, open_devices
from moonpool.transfer.transports.rdma_owner import RdmaOwner
from moonpool.transfer.transports.rdma_path import RdmaPath
from moonpool.transfer.transports.rdma_pool import LinkPool
from moonpool.transfer.transports.rdma_verbs import load
from moonpool.transfer.transports.tcp import join_address, split_address

BACKLOG = 128
PATHS_MAX = 1024  # before those without a link are dropped


class RdmaTransport:
    name = "rdma"

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._devices: list[Device] = []
        self._owner: RdmaOwner | None = None
        self._pool = LinkPool()
        self._paths: dict[tuple[str, str], RdmaPath] = {}  # by address and epoch

    async def listen(self) -> list[Endpoint]:
        """One endpoint per adapter. Raises TransportUnavailable without pyverbs or an adapter,
        BadTransfer when the host or an adapter's address is none of ours."""
        around = self._around
        choices = parse_choices(around.rdma_device)
        self._devices = open_devices(load(), choices)
        host = around.listen_host.strip("[]")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        except OSError as error:
            raise BadTransfer(f"cannot listen on {host!r}: {error.strerror}") from error
        self._owner = RdmaOwner(around.name, around.table, around.tally, self._devices, sock)
        around.table.notifiers.append(self._owner)
        port = sock.getsockname()[1]
        return [
            Endpoint(self.name, f"{join_address(self._shown(host, device), port)}/{device.name}")
            for device in self._devices
        ]

    def _shown(self, host: str, device: Device) -> str:
        """What peers connect to: for a wildcard, the address that the adapter has."""
        if self._around.advertise_host:
            return self._around.advertise_host
        wild = False
        with contextlib.suppress(ValueError):
            wild = ipaddress.ip_address(host).is_unspecified
        return (device.gid.ip or socket.gethostname()) if wild else host

    def path(self, grant: RegionGrant, endpoint: Endpoint) -> RdmaPath | None:
        if not self._devices:
            return None
        key = (endpoint.address, grant.epoch)
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= PATHS_MAX:
                self._paths = {k: p for k, p in self._paths.items() if p.connected or p.waiting}
            address, _, adapter = endpoint.address.rpartition("/")
            host, port = split_address(address)
            mine = [e for e in grant.endpoints if e.transport == self.name].index(endpoint)
            path = RdmaPath(
                self._devices[mine % len(self._devices)],
                grant.segment,
                grant.epoch,
                (host, port, adapter),
                self._around.reporter,
                self._around.tally,
                self._pool,
            )
            self._paths[key] = path
        return path

    def stats(self) -> dict[str, float]:
        paths = self._paths.values()
        return {
            **(self._owner.stats() if self._owner is not None else {}),
            "adapters": len(self._devices),
            "bytes_pinned": sum(device.memory.bytes_pinned for device in self._devices),
            "links_open": sum(path.connected for path in paths),
            "links_retired": self._pool.retired,
            "paths_resting": sum(path.resting for path in paths),
            "jobs_waiting": sum(path.waiting for path in paths),
        }

    async def close(self) -> None:
        threads = [thread for path in self._paths.values() for thread in path.close()]
        if self._owner is not None:
            threads += self._owner.close()
        await join_all(threads)
        await asyncio.sleep(0)  # reports of those threads
        if self._owner is not None:
            self._owner.close_socket()
        for device in self._devices:
            device.close()
        self._devices.clear()
