"""Which NICs are near which memory. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

PREFERRED, OTHER, UNNAMED = 0, 1, 2  # ranks: how near a NIC is, lowest first
ANY_LOCATION = "*"  # of memory that has no row of its own


@dataclass(frozen=True, slots=True)
class Row:
    """Of one location. No NIC is in both."""

    preferred: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The matrix `location -> [preferred NICs, other NICs]`. Locations are "cpu:N" (a NUMA node)
    and "cuda:N" (a GPU); NICs are named as the kernel names adapters ("mlx5_0") and interfaces."""

    rows: Mapping[str, Row] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # interface <-> adapter of one card

    def rank(self, location: str, nic: str) -> int:
        """PREFERRED for every NIC where the matrix does not know the location. Location "" is
        memory that nobody placed: it lies on the only node, or may be on any."""
        row = self.rows.get(location or self._only_node) or self.rows.get(ANY_LOCATION)
        if row is None:
            return PREFERRED
        names = {nic, self.aliases.get(nic, nic)}
        if names & set(row.preferred):
            return PREFERRED
        return OTHER if names & set(row.others) else UNNAMED

    @property
    def _only_node(self) -> str:
        nodes = [location for location in self.rows if location.startswith("cpu:")]
        return nodes[0] if len(nodes) == 1 else ""
