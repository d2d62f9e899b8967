"""What a host has: NUMA nodes, NICs and GPUs with their places on the PCI buses, and the matrix
that follows from it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moonpool.transfer.topology.matrix import Row, Topology

ANYWHERE = -1  # the kernel does not know the NUMA node, as in most virtual machines


@dataclass(frozen=True, slots=True)
class Place:
    numa_node: int = ANYWHERE
    buses: tuple[str, ...] = ()  # from the root complex down to the device; (): not on PCI


@dataclass(frozen=True, slots=True)
class Nic:
    name: str
    kind: str  # "rdma" or "net"
    place: Place
    up: bool = True


@dataclass(frozen=True, slots=True)
class Gpu:
    location: str  # "cuda:0"
    address: str  # on PCI
    place: Place


@dataclass(frozen=True, slots=True)
class Machine:
    distances: Mapping[int, Sequence[int]]  # NUMA node -> distance to each node, in their order
    nics: Sequence[Nic] = ()
    gpus: Sequence[Gpu] = ()

    def node_distance(self, a: int, b: int) -> int:
        """10 for one node, more for others; nothing is far from ANYWHERE."""
        if a == b or ANYWHERE in (a, b):
            return 10
        row, at = self.distances.get(a, ()), sorted(self.distances)
        return row[at.index(b)] if b in at and at.index(b) < len(row) else 20

    def distance(self, a: Place, b: Place) -> tuple[int, int, int]:
        """Between NUMA nodes; then whether a root complex lies between; then bridges on the way."""
        shared = 0
        for one, other in zip(a.buses, b.buses, strict=False):
            if one != other:
                break
            shared += 1
        bridges = len(a.buses) + len(b.buses) - 2 * shared
        return (self.node_distance(a.numa_node, b.numa_node), int(shared == 0), bridges)


def matrix_of(machine: Machine) -> Topology:
    """Memory of a NUMA node prefers the NICs of the nearest node that has any, a GPU those with the
    fewest bridges between. Adapters and interfaces of one card stand side by side."""
    rows = {}
    for node in sorted(machine.distances) or [0]:
        rows[f"cpu:{node}"] = _row(
            {nic.name: (machine.node_distance(node, nic.place.numa_node),) for nic in machine.nics}
        )
    for gpu in machine.gpus:
        rows[gpu.location] = _row(
            {nic.name: machine.distance(gpu.place, nic.place) for nic in machine.nics}
        )
    return Topology(rows, _aliases(machine.nics))


def _row(distances: Mapping[str, tuple[int, ...]]) -> Row:
    least = min(distances.values(), default=())
    return Row(
        tuple(name for name, far in distances.items() if far == least),
        tuple(name for name, far in distances.items() if far != least),
    )


def _aliases(nics: Sequence[Nic]) -> dict[str, str]:
    out: dict[str, str] = {}
    for one in nics:
        for other in nics:
            if one.kind != other.kind and one.place.buses and one.place.buses == other.place.buses:
                out.setdefault(one.name, other.name)
    return out
