"""How many peers of one transport are connected at once, and which one goes when there are too
many: SIEVE by default, for a peer that was used once must not drive out one in use."""

import threading
from typing import Protocol

from moonpool.cache import EvictionPolicy, make_policy

ENDPOINTS_MAX = 256


class Retirable(Protocol):
    def retire(self) -> None:
        """Close the connection as soon as nothing is under way on it. From any thread; never
        blocks, and takes no lock that may be held while the pool is called."""


class EndpointPool:
    """Thread-safe. Over the bound only by connections that still have work to end."""

    def __init__(self, policy: str = "sieve", endpoints_max: int = 0) -> None:
        """`policy`: "sieve", "fifo" or another of `moonpool.cache`; ValueError when there is none
        of that name. `endpoints_max` 0: `ENDPOINTS_MAX`; ValueError when it is no count."""
        if not isinstance(endpoints_max, int) or endpoints_max < 0:
            raise ValueError(f"endpoints_max {endpoints_max!r} is no count of peers")
        self._lock = threading.Lock()
        self._order: EvictionPolicy[Retirable] = make_policy(policy)
        self._endpoints_max = endpoints_max
        self._latest: Retirable | None = None
        self.retired = 0

    def opened(self, path: Retirable) -> None:
        """`path` is connected now; the least useful one may have to go for it."""
        victims = []
        with self._lock:
            if path not in self._order:
                self._order.insert(path, 1, 0.0)
            while len(self._order) > (self._endpoints_max or ENDPOINTS_MAX):
                victim = self._order.victim(0.0)
                if victim is None:
                    break
                self._order.remove(victim)
                victims.append(victim)
            self.retired += len(victims)
        for victim in victims:
            victim.retire()

    def used(self, path: Retirable) -> None:
        """Cheap when it is the one that was used last."""
        if path is not self._latest:
            self._latest = path
            with self._lock:
                self._order.touch((path,), 0.0)

    def closed(self, path: Retirable) -> None:
        """Its connection is gone, for whatever reason."""
        with self._lock:
            if path in self._order:
                self._order.remove(path)
            if path is self._latest:
                self._latest = None

    def __len__(self) -> int:
        return len(self._order)
