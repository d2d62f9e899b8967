"""Between hosts with RDMA adapters: the adapters read and write registered memory by themselves.

A handshake connection (tcp) shows the grant, exchanges queue pairs and hands out keys; from then on
no CPU of the owner's takes part. See docs/decisions for how access is bounded and taken back.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.spraying import (
    Lane,
    LocalNic,
    NicLoad,
    SprayedPath,
    pair_up,
    sprayed_stats,
)
from moonpool.transfer.transports.base import Path, Surroundings
from moonpool.transfer.transports.joining import join_all
from moonpool.transfer.transports.nics import address_of, find_nics, split_hosts
from moonpool.transfer.transports.rdma_choice import parse_choices
from moonpool.transfer.transports.rdma_device import Device, open_devices
from moonpool.transfer.transports.rdma_owner import RdmaOwner
from moonpool.transfer.transports.rdma_path import RdmaPath
from moonpool.transfer.transports.rdma_verbs import load
from moonpool.transfer.transports.tcp import join_address, split_address

BACKLOG = 128
SLICE_S = 50e-6  # some times what a slice costs our processor
PATHS_MAX = 1024  # before those without a link are dropped


class RdmaTransport:
    name = "rdma"

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._devices: list[Device] = []
        self._owner: RdmaOwner | None = None
        self._pool = around.endpoint_pool()
        self._loads: list[NicLoad] = []
        self._paths: dict[tuple[str, str, str], RdmaPath] = {}  # by address, epoch and adapter
        self._sprayed: dict[tuple[str, ...], SprayedPath] = {}  # by epoch and addresses

    async def listen(self) -> list[Endpoint]:
        """One endpoint per adapter. Raises TransportUnavailable without pyverbs or an adapter,
        BadTransfer when a host or an adapter's address is none of ours."""
        around = self._around
        choices = parse_choices(around.rdma_device)
        self._devices = open_devices(load(), choices)
        self._loads = [NicLoad(device.name) for device in self._devices]
        hosts = split_hosts(around.listen_host)
        if len(hosts) > 1:
            hosts = [nic.address for nic in find_nics(hosts)]
        else:
            hosts = [address_of(host) for host in hosts]
        socks = [_listen(host) for host in hosts or [""]]
        self._owner = RdmaOwner(
            around.name, around.table, around.tally, self._devices, socks, around.fences
        )
        around.table.notifiers.append(self._owner)
        around.table.pins += [device.memory.prepare for device in self._devices]
        ends = [(host, sock.getsockname()[1]) for host, sock in zip(hosts, socks, strict=True)]
        several = len(self._devices) > 1
        endpoints = []
        for index, device in enumerate(self._devices):
            host, port = ends[index % len(ends)]
            shown = join_address(self._shown(host, index % len(ends), device), port)
            nic = device.name if several else ""
            endpoints.append(Endpoint(self.name, f"{shown}/{device.name}", nic=nic))
        return endpoints

    def _shown(self, host: str, index: int, device: Device) -> str:
        """What peers connect to: for a wildcard, the address that the adapter has."""
        told = split_hosts(self._around.advertise_host)
        if told:
            return told[index % len(told)]
        wild = False
        with contextlib.suppress(ValueError):
            wild = ipaddress.ip_address(host).is_unspecified
        return (device.gid.ip or socket.gethostname()) if wild else host

    def paths(self, grant: RegionGrant, endpoints: Sequence[Endpoint]) -> list[Path]:
        if not self._devices:
            return []
        if len(endpoints) == len(self._devices) == 1:
            return [self._path(grant, endpoints[0], self._devices[0])]
        key = (grant.epoch, *(endpoint.address for endpoint in endpoints))
        sprayed = self._sprayed.get(key)
        if sprayed is None:
            if len(self._sprayed) >= PATHS_MAX:
                self._sprayed = {k: path for k, path in self._sprayed.items() if path.busy}
            sprayed = self._sprayed[key] = self._spray(grant, endpoints)
        return [sprayed]

    def _spray(self, grant: RegionGrant, endpoints: Sequence[Endpoint]) -> SprayedPath:
        """Adapters go together by number, as rails are wired."""
        lanes = []
        nics = [LocalNic(device.name) for device in self._devices]
        for pair in pair_up(nics, [""] * len(endpoints)):
            device, endpoint = self._devices[pair.local], endpoints[pair.remote]
            path = self._path(grant, endpoint, device)
            where = f"{device.name} > {endpoint.address}"
            load = self._loads[pair.local]
            lanes.append(Lane(path, load, device.name, pair.remote, where, pair.spare))
        around = self._around
        report = around.reporter.report
        return SprayedPath(self.name, grant.segment, lanes, around.topology, report, SLICE_S)

    def _path(self, grant: RegionGrant, endpoint: Endpoint, device: Device) -> RdmaPath:
        key = (endpoint.address, grant.epoch, device.name)
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= PATHS_MAX:
                self._paths = {k: p for k, p in self._paths.items() if p.connected or p.waiting}
            address, _, adapter = endpoint.address.rpartition("/")
            host, port = split_address(address)
            around = self._around
            path = self._paths[key] = RdmaPath(
                device,
                grant.segment,
                grant.epoch,
                (host, port, adapter),
                around.reporter,
                around.tally,
                self._pool,
                around.owners.left_at(grant.epoch),
            )
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
            **sprayed_stats(list(self._sprayed.values()), self._loads),
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


def _listen(host: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, 0), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadTransfer(f"cannot listen on {host!r}: {error.strerror}") from error
