"""Placement: which node takes the new blocks of a request."""

from collections.abc import Sequence

from services.conductor.fleet import Member
from services.conductor.topology import Distance, Spot, distance


def choose_store(nodes: Sequence[Member], spots: Sequence[Spot], rotation: int) -> Member | None:
    """The node that blocks go to: on the host of the first of `spots` that has one (shared memory
    beats any network), then in its rack, then anywhere but in another zone; of those the one with
    most room. Equals take turns. None: no node can take them."""
    able = [node for node in nodes if node.can_serve()]
    for apart in Distance:
        for spot in spots:
            near = [node for node in able if distance(node.spot, spot) is apart]
            if near:
                return _roomiest(near, rotation)
    return None


def _roomiest(nodes: Sequence[Member], rotation: int) -> Member:
    def order(turn: int) -> tuple[float, int]:
        return -round(_free_share(nodes[turn]), 2), (turn - rotation) % len(nodes)

    return nodes[min(range(len(nodes)), key=order)]


def _free_share(node: Member) -> float:
    """Free part of its dram; a node that has not said counts as empty."""
    used, total = node.load.tiers.get("dram", (0, 0)) if node.load else (0, 0)
    return 1.0 - used / total if total > 0 else 1.0
