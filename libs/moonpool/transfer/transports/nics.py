"""NICs of ours for tcp: an address each, and connections that leave from it."""

import contextlib
import ipaddress
import socket
from dataclasses import dataclass

import psutil

from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.spraying import LocalNic

FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, slots=True)
class Source:
    """Where connections leave from."""

    address: str
    interface: str = ""  # by whose link they go, whatever the routes say; "": as routed

    def bind(self, sock: socket.socket) -> None:
        """Raises OSError when the address is none of ours any more."""
        if self.interface:
            with contextlib.suppress(PermissionError):  # kernels before 5.7: as routed, then
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.interface.encode())
        sock.bind((self.address, 0))


def split_hosts(text: str) -> list[str]:
    """ "eth0, [fd00::1]" -> ["eth0", "fd00::1"]."""
    return [part.strip().strip("[]") for part in text.split(",") if part.strip()]


def find_nics(hosts: list[str]) -> list[LocalNic]:
    """One per host: the name of an interface, an address of ours, or a name for one. Raises
    BadTransfer."""
    interfaces = _interfaces()
    return [_find(host, interfaces) for host in hosts]


def address_of(host: str) -> str:
    """`host`, or the address of the interface that it names. Raises BadTransfer."""
    interfaces = _interfaces()
    return _find(host, interfaces).address if host in interfaces else host


def own_addresses() -> set[str]:
    return {str(each.ip) for found in _interfaces().values() for each in found}


_Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def _find(host: str, interfaces: dict[str, list[_Interface]]) -> LocalNic:
    if host in interfaces:
        usable = [each for each in interfaces[host] if not each.ip.is_link_local]
        if not usable:
            raise BadTransfer(f"interface {host} has no address")
        return LocalNic(host, str(usable[0].ip), usable[0])
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        ip = ipaddress.ip_address(str(found[0][4][0]))
    except (OSError, ValueError) as error:
        raise BadTransfer(f"{host!r} is no interface and no address of this host") from error
    for name, each in ((n, each) for n, all_of in interfaces.items() for each in all_of):
        if each.ip == ip or (ip.is_loopback and ip in each.network):
            return LocalNic(name, str(ip), each)
    raise BadTransfer(f"cannot listen on {host!r}: it is no address of this host")


def _interfaces() -> dict[str, list[_Interface]]:
    out: dict[str, list[_Interface]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family in FAMILIES and each.netmask:
                bits = _bits(each.netmask)
                ip = each.address.partition("%")[0]
                out.setdefault(name, []).append(ipaddress.ip_interface(f"{ip}/{bits}"))
    return out


def _bits(netmask: str) -> int:
    return int(ipaddress.ip_address(netmask)).bit_count()
