"""Which adapter, port and address (GID) to use: told by the caller, or chosen. Pure."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from moonpool.transfer.errors import BadTransfer


@dataclass(frozen=True, slots=True)
class Choice:
    """What the caller wants. Nothing given: everything that is active."""

    device: str = ""
    port: int = 0  # 0: any
    gid_index: int = -1  # -1: the best


def parse_choices(text: str) -> list[Choice]:
    """ "", "mlx5_0", "mlx5_0:1", "mlx5_0:1:3" (device:port:gid index), several with commas. Raises
    BadTransfer."""
    out = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        device, *numbers = item.split(":")
        if not device or len(numbers) > 2 or not all(n.isdecimal() for n in numbers):
            raise BadTransfer(f"{item!r} names no adapter: device, device:port or device:port:gid")
        port, gid_index = [*map(int, numbers), 0, -1][:2] if numbers else (0, -1)
        if len(numbers) < 2:
            gid_index = -1
        out.append(Choice(device, port, gid_index))
    return out


class GidKind(IntEnum):
    INFINIBAND = 0
    ROCE_V1 = 1
    ROCE_V2 = 2


@dataclass(frozen=True, slots=True)
class Gid:
    index: int
    kind: int
    text: str  # as an IPv6 address

    @property
    def ip(self) -> str:
        """The IP address that a RoCE v2 GID is; "" of any other."""
        if self.kind != GidKind.ROCE_V2:
            return ""
        address = ipaddress.IPv6Address(self.text)
        return str(address.ipv4_mapped or address)


def best_gid(gids: Iterable[Gid]) -> Gid | None:
    """RoCE v2 before InfiniBand before RoCE v1; of v2 the routable, IPv4 first; then the first."""
    usable = [gid for gid in gids if int(ipaddress.IPv6Address(gid.text)) & ((1 << 64) - 1)]
    return min(usable, key=_rank, default=None)


def _rank(gid: Gid) -> tuple[int, int]:
    if gid.kind != GidKind.ROCE_V2:
        return (3 if gid.kind == GidKind.INFINIBAND else 4, gid.index)
    address = ipaddress.IPv6Address(gid.text)
    if address.ipv4_mapped is not None:
        return (0, gid.index)
    return (2 if address.is_link_local else 1, gid.index)
