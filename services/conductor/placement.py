"""Placement: which node takes the new blocks of a request."""

from collections.abc import Sequence

from services.conductor.fleet import Member


def choose_store(nodes: Sequence[Member], hosts: Sequence[str], rotation: int) -> Member | None:
    """The node that blocks go to: on the first of `hosts` that has one (shared memory beats any
    network), else the one with most room. Equals take turns. None: no node can take them."""
    able = [node for node in nodes if node.can_serve()]
    for host in hosts:
        near = [node for node in able if node.host == host]
        if near:
            return _roomiest(near, rotation)
    return _roomiest(able, rotation) if able else None


def _roomiest(nodes: Sequence[Member], rotation: int) -> Member:
    def order(turn: int) -> tuple[float, int]:
        return -round(_free_share(nodes[turn]), 2), (turn - rotation) % len(nodes)

    return nodes[min(range(len(nodes)), key=order)]


def _free_share(node: Member) -> float:
    """Free part of its dram; a node that has not said counts as empty."""
    used, total = node.load.tiers.get("dram", (0, 0)) if node.load else (0, 0)
    return 1.0 - used / total if total > 0 else 1.0
