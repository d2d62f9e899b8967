"""Which nodes should hold a value. Pure policies; randomness is handed in.

A name's *home*, where everybody looks first, is always its first node by rendezvous hashing, so
that a node that comes or goes moves only its own share. A strategy says where the bytes of larger
values go; the home then points there.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

SLOW_START_S = 60.0  # a fresh node gets its full share only after so long
SLOW_START_SHARE = 0.05  # and so little of it in its first moment


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a strategy sees it."""

    id: str
    is_local: bool = False  # on our own host
    age_s: float = 3600.0  # since its start
    free_ratio: float = 1.0  # of dram, 0..1
    ssd_free_ratio: float = 0.0  # of nvme; 0 without one

    @property
    def ramp(self) -> float:
        """Its share while it starts slowly: an empty node must not draw every writer at once."""
        return min(1.0, SLOW_START_SHARE + self.age_s / SLOW_START_S)


class Strategy(Protocol):
    """An order over nodes: a value's copies and stripes go to the first ones."""

    needs_ratios: bool  # whether free_ratio and ssd_free_ratio are looked at

    def order(self, key: bytes, nodes: Sequence[NodeView], rng: Random) -> list[NodeView]: ...


def rank_nodes(key: bytes, nodes: Iterable[str]) -> list[str]:
    """All nodes, the one that should hold `key` first. Everybody gets the same order."""
    return sorted(nodes, key=lambda node: hashlib.sha256(key + node.encode()).digest())


def first_node(key: bytes, nodes: Sequence[str]) -> str:
    """The first of `rank_nodes`. ValueError on none."""
    if len(nodes) == 1:
        return nodes[0]
    return min(nodes, key=lambda node: hashlib.sha256(key + node.encode()).digest())


def _ranked(key: bytes, nodes: Sequence[NodeView]) -> list[NodeView]:
    by_id = {node.id: node for node in nodes}
    return [by_id[id] for id in rank_nodes(key, by_id)]


class Rendezvous:
    """By the key alone: no pointer is needed, and all nodes fill alike."""

    needs_ratios = False

    def order(self, key: bytes, nodes: Sequence[NodeView], rng: Random) -> list[NodeView]:
        return _ranked(key, nodes)


class LocalFirst:
    """Our own host's nodes first: read back through shared memory."""

    needs_ratios = False

    def order(self, key: bytes, nodes: Sequence[NodeView], rng: Random) -> list[NodeView]:
        return sorted(_ranked(key, nodes), key=lambda node: not node.is_local)


class RandomOrder:
    """Anywhere, fresh nodes more rarely."""

    needs_ratios = False

    def order(self, key: bytes, nodes: Sequence[NodeView], rng: Random) -> list[NodeView]:
        # Efraimidis and Spirakis: the order of u^(1/weight) draws by weight without replacement.
        return sorted(nodes, key=lambda node: rng.random() ** (1.0 / node.ramp), reverse=True)


class FreeRatioFirst:
    """Where most dram is free."""

    needs_ratios = True

    def order(self, key: bytes, nodes: Sequence[NodeView], rng: Random) -> list[NodeView]:
        ranked = _ranked(key, nodes)
        return sorted(ranked, key=lambda node: node.free_ratio * node.ramp, reverse=True)


class SsdFreeRatioFirst:
    """Where most nvme is free; dram decides among those without."""

    needs_ratios = True

    def order(self, key: bytes, nodes: Sequence[NodeView], rng: Random) -> list[NodeView]:
        def share(node: NodeView) -> tuple[float, float]:
            return node.ssd_free_ratio * node.ramp, node.free_ratio * node.ramp

        return sorted(_ranked(key, nodes), key=share, reverse=True)


_STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "local_first": LocalFirst,
    "free_ratio_first": FreeRatioFirst,
    "ssd_free_ratio_first": SsdFreeRatioFirst,
    "rendezvous": Rendezvous,
    "random": RandomOrder,
}
STRATEGY_NAMES = tuple(_STRATEGIES)


def make_strategy(name: str) -> Strategy:
    """ValueError on an unknown name."""
    if name not in _STRATEGIES:
        raise ValueError(f"placement {name!r} is none of {', '.join(STRATEGY_NAMES)}")
    return _STRATEGIES[name]()
