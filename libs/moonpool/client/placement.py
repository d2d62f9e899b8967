"""Which node holds a value that anybody may look for: rendezvous hashing, so that a node that
comes or goes moves only its own share."""

import hashlib
from collections.abc import Iterable


def rank_nodes(key: bytes, nodes: Iterable[str]) -> list[str]:
    """All nodes, the one that should hold `key` first. Everybody gets the same order."""
    return sorted(nodes, key=lambda node: hashlib.sha256(key + node.encode()).digest())
