"""Everywhere: own framing over several streams per peer, IPv4 and IPv6, over one NIC or several."""

import asyncio
import socket
from collections.abc import Sequence
from weakref import WeakValueDictionary

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.spraying import (
    Lane,
    LocalNic,
    NicLoad,
    Pair,
    SprayedPath,
    pair_up,
    sprayed_stats,
)
from moonpool.transfer.transports.base import Path, Surroundings
from moonpool.transfer.transports.joining import join_all
from moonpool.transfer.transports.nics import (
    Source,
    address_of,
    find_nics,
    own_addresses,
    split_hosts,
)
from moonpool.transfer.transports.tcp_awake import Lookouts
from moonpool.transfer.transports.tcp_keeper import Keeper
from moonpool.transfer.transports.tcp_owner import TcpServer
from moonpool.transfer.transports.tcp_peer import TcpPath

BACKLOG = 256
SLICE_S = 300e-6  # three times what a slice costs both processors
SPRAYED_MAX = 1024  # before those with nothing under way are dropped
ROUTED = LocalNic("")  # one NIC: the kernel knows the way


class TcpTransport:
    name = "tcp"

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._servers: list[TcpServer] = []
        self._lookouts = Lookouts(around.look_out)
        self._nics: list[LocalNic] = [ROUTED]
        self._loads: list[NicLoad] = []
        self._endpoints = around.endpoint_pool()
        # By address, epoch and our address, for as long as a stream or a grant uses it.
        self._paths: WeakValueDictionary[tuple[str, str, str], TcpPath] = WeakValueDictionary()
        self._sprayed: dict[tuple[str, ...], SprayedPath] = {}  # by epoch and addresses

    async def listen(self) -> list[Endpoint]:
        """One endpoint per NIC. Raises BadTransfer when a host is none of ours, or addresses to
        show do not fit those to listen on."""
        around = self._around
        hosts, shown = split_hosts(around.listen_host), split_hosts(around.advertise_host)
        several = len(hosts) > 1
        if len(shown) not in (0, len(hosts)):
            raise BadTransfer(f"{len(shown)} addresses to advertise for {len(hosts)} to listen on")
        if several:
            self._nics = find_nics(hosts)
            hosts = [nic.address for nic in self._nics]
        else:
            hosts = [address_of(host) for host in hosts]
        self._loads = [NicLoad(label) for label in _labels(self._nics)]
        endpoints = []
        for index, host in enumerate(hosts or [""]):
            sock = _listen(host)
            server = TcpServer(
                around.name,
                around.table,
                around.tally,
                sock,
                around.tls,
                around.fences,
                self._lookouts,
            )
            self._servers.append(server)
            address, port = sock.getsockname()[:2]
            seen_as = shown[index] if shown else _shown(str(address))
            nic = self._nics[index].name if several else ""
            endpoints.append(Endpoint(self.name, join_address(seen_as, port), nic=nic))
        return endpoints

    def paths(self, grant: RegionGrant, endpoints: Sequence[Endpoint]) -> list[Path]:
        if len(endpoints) == len(self._nics) == 1:
            return [self._path(grant, endpoints[0], self._nics[0])]
        key = (grant.epoch, *(endpoint.address for endpoint in endpoints))
        sprayed = self._sprayed.get(key)
        if sprayed is None:
            if len(self._sprayed) >= SPRAYED_MAX:
                self._sprayed = {k: path for k, path in self._sprayed.items() if path.busy}
            sprayed = self._sprayed[key] = self._spray(grant, endpoints)
        return [sprayed]

    def _spray(self, grant: RegionGrant, endpoints: Sequence[Endpoint]) -> SprayedPath:
        hosts = [split_address(endpoint.address)[0] for endpoint in endpoints]
        ours = own_addresses()
        lanes = []
        for pair in pair_up(self._nics, hosts):
            nic, endpoint = self._nics[pair.local], endpoints[pair.remote]
            by_link = pair.on_link and hosts[pair.remote] not in ours
            path = self._path(grant, endpoint, nic, nic.name if by_link else "")
            lanes.append(self._lane(pair, path, endpoint))
        around = self._around
        report = around.reporter.report
        return SprayedPath(self.name, grant.segment, lanes, around.topology, report, SLICE_S)

    def _lane(self, pair: Pair, path: TcpPath, endpoint: Endpoint) -> Lane:
        load = self._loads[pair.local]
        where = f"{load.name or 'any'} > {endpoint.address}"
        return Lane(path, load, self._nics[pair.local].name, pair.remote, where, pair.spare)

    def _path(
        self, grant: RegionGrant, endpoint: Endpoint, nic: LocalNic, interface: str = ""
    ) -> TcpPath:
        key = (endpoint.address, grant.epoch, nic.address)
        path = self._paths.get(key)
        if path is None:
            host, port = split_address(endpoint.address)
            around = self._around
            path = self._paths[key] = TcpPath(
                grant.segment,
                grant.epoch,
                host,
                port,
                around.reporter,
                around.tally,
                around.tls,
                Source(nic.address, interface) if nic.address else None,
                Keeper(self._endpoints, around.loop),
                around.owners.left_at(grant.epoch),
                self._lookouts,
            )
        return path

    def stats(self) -> dict[str, float]:
        several = self._loads if len(self._nics) > 1 else []
        return {
            "streams_served": sum(server.streams for server in self._servers),
            "streams_ended_for_room": sum(server.made_room for server in self._servers),
            "streams_open": sum(path.streams for path in list(self._paths.values())),
            "express_open": sum(path.has_express for path in list(self._paths.values())),
            "jobs_waiting": sum(path.waiting for path in list(self._paths.values())),
            "links_retired": self._endpoints.retired,
            **self._lookouts.stats(),
            **sprayed_stats(list(self._sprayed.values()), several),
        }

    async def close(self) -> None:
        threads = [thread for path in list(self._paths.values()) for thread in path.close()]
        for server in self._servers:
            threads += server.close()
        await join_all(threads)
        await asyncio.sleep(0)
        for server in self._servers:
            server.close_socket()
        self._lookouts.close()


def _listen(host: str) -> socket.socket:
    try:
        found = _addresses(host)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadTransfer(f"cannot listen on {host!r}: {error.strerror}") from error


def _labels(nics: Sequence[LocalNic]) -> list[str]:
    """The names of the interfaces, or the addresses where two share one."""
    names = [nic.name for nic in nics]
    return [nic.address if names.count(nic.name) > 1 else nic.name for nic in nics]


def _addresses(host: str) -> list[tuple[socket.AddressFamily, int, int, str, tuple[object, ...]]]:
    """Of a host that is ours: at start only, so it may take as long as a look at /etc/hosts."""
    return list(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Raises BadTransfer when it is no "host:port" or "[v6]:port"."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadTransfer(f"{address!r} is no tcp address")
    return host.strip("[]"), int(port)


def _shown(host: str) -> str:
    """What peers connect to: for a wildcard, the address that packets to the outside carry."""
    if host not in ("0.0.0.0", "::"):
        return host
    family, target = (
        (socket.AF_INET, "192.0.2.1") if host == "0.0.0.0" else (socket.AF_INET6, "2001:db8::1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))  # sends nothing
        except OSError:
            return "127.0.0.1" if family == socket.AF_INET else "::1"
        return str(probe.getsockname()[0])
