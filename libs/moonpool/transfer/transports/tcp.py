"""Everywhere: own framing over several streams per peer, IPv4 and IPv6."""

import asyncio
import socket

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.transports.base import Surroundings
from moonpool.transfer.transports.joining import join_all
from moonpool.transfer.transports.tcp_owner import TcpServer
from moonpool.transfer.transports.tcp_peer import TcpPath

BACKLOG = 256
PATHS_MAX = 1024  # before those without a stream are dropped


class TcpTransport:
    name = "tcp"

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._server: TcpServer | None = None
        self._paths: dict[tuple[str, str], TcpPath] = {}  # by address and epoch

    async def listen(self) -> list[Endpoint]:
        """Raises BadTransfer when the host is none of ours."""
        host = self._around.listen_host.strip("[]")
        try:
            found = _addresses(host)
            family, _, _, _, address = found[0]
            sock = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            raise BadTransfer(f"cannot listen on {host!r}: {error.strerror}") from error
        around = self._around
        self._server = TcpServer(around.name, around.table, around.tally, sock, around.tls)
        shown = self._around.advertise_host or _shown(str(address[0]))
        return [Endpoint(self.name, join_address(shown, sock.getsockname()[1]))]

    def path(self, grant: RegionGrant, endpoint: Endpoint) -> TcpPath | None:
        key = (endpoint.address, grant.epoch)
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= PATHS_MAX:
                self._paths = {k: p for k, p in self._paths.items() if p.streams or p.waiting}
            host, port = split_address(endpoint.address)
            around = self._around
            path = TcpPath(
                grant.segment, grant.epoch, host, port, around.reporter, around.tally, around.tls
            )
            self._paths[key] = path
        return path

    def stats(self) -> dict[str, float]:
        return {
            "streams_served": self._server.streams if self._server else 0,
            "streams_open": sum(path.streams for path in self._paths.values()),
            "jobs_waiting": sum(path.waiting for path in self._paths.values()),
        }

    async def close(self) -> None:
        threads = [thread for path in self._paths.values() for thread in path.close()]
        if self._server is not None:
            threads += self._server.close()
        await join_all(threads)
        await asyncio.sleep(0)
        if self._server is not None:
            self._server.close_socket()


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
