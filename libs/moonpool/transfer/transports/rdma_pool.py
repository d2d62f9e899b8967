"""How many links are open at once, and which one goes when there are too many (SIEVE)."""

import threading
from typing import Protocol

from moonpool.cache import EvictionPolicy, make_policy

LINKS_MAX = 256


class Retirable(Protocol):
    def retire(self) -> None:
        """Close the link as soon as nothing is under way on it. From any thread; never blocks."""


class LinkPool:
    """Thread-safe. Over the bound only by links that still have work to end."""

    def __init__(self, policy: str = "sieve") -> None:
        """`policy`: "sieve", "fifo" or another of `moonpool.cache`."""
        self._lock = threading.Lock()
        self._order: EvictionPolicy[Retirable] = make_policy(policy)
        self.retired = 0

    def opened(self, path: Retirable) -> None:
        """`path` has a link now; the least useful one may have to go for it."""
        victims = []
        with self._lock:
            if path not in self._order:
                self._order.insert(path, 1, 0.0)
            while len(self._order) > LINKS_MAX and (victim := self._order.victim(0.0)) is not None:
                self._order.remove(victim)
                victims.append(victim)
            self.retired += len(victims)
        for victim in victims:
            victim.retire()

    def used(self, path: Retirable) -> None:
        with self._lock:
            self._order.touch((path,), 0.0)

    def closed(self, path: Retirable) -> None:
        """Its link is gone, for whatever reason."""
        with self._lock:
            if path in self._order:
                self._order.remove(path)

    def __len__(self) -> int:
        return len(self._order)
