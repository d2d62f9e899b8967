"""Which NIC of ours goes with which NIC of the peer's. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address

SPARES_PER_PAIR = 1


@dataclass(frozen=True, slots=True)
class LocalNic:
    name: str  # interface or adapter
    address: str = ""  # that connections leave from; "": as the kernel chooses
    network: IPv4Interface | IPv6Interface | None = None  # what can be reached without a router


@dataclass(frozen=True, slots=True)
class Pair:
    local: int
    remote: int
    on_link: bool = False
    spare: bool = False  # for when those that go together do not work


def pair_up(local: Sequence[LocalNic], remote: Sequence[str]) -> list[Pair]:
    """Each NIC of either side is in a pair: with one on the same link where there is one, else by
    number, as rails are wired. As many other combinations follow as spares. `remote`: addresses;
    those that are no IP address are anywhere."""
    usable = [(i, j) for j in range(len(remote)) for i in _reaching(local, remote[j])]
    used_local, used_remote = [0] * len(local), [0] * len(remote)
    chosen: list[tuple[int, int]] = []

    def take(options: list[tuple[int, int]]) -> None:
        i, j = min(options, key=lambda p: (used_local[p[0]], used_remote[p[1]], p[0] != p[1], p))
        chosen.append((i, j))
        used_local[i] += 1
        used_remote[j] += 1

    for j in range(len(remote)):
        twins = [(j, j)] if (j, j) in usable else []
        take(twins or [p for p in usable if p[1] == j])
    for i in range(len(local)):
        options = [p for p in usable if p[0] == i]
        if options and not used_local[i]:
            take(options)
    rest = [p for p in usable if p not in chosen]
    rest.sort(key=lambda p: ((p[1] - p[0]) % len(remote), p))  # a NIC's neighbour, then the next
    spares = rest[: SPARES_PER_PAIR * len(chosen)]
    return [Pair(i, j, _on_link(local[i], remote[j]), (i, j) in spares) for i, j in chosen + spares]


def _reaching(local: Sequence[LocalNic], remote: str) -> list[int]:
    """Those on one link with it; without any, those of its family; without any, all."""
    linked = [i for i, nic in enumerate(local) if _on_link(nic, remote)]
    family = [i for i, nic in enumerate(local) if (":" in nic.address) == (":" in remote)]
    return linked or family or list(range(len(local)))


def _on_link(nic: LocalNic, remote: str) -> bool:
    try:
        return nic.network is not None and ip_address(remote) in nic.network.network
    except ValueError:
        return False
