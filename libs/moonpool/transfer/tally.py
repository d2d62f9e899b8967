"""Counters of one engine. Increments from threads are lock-protected where they must be exact."""

import threading
from collections import defaultdict


class Tally:
    """Named sums, `"tcp.read.bytes"` and the like."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self._sums[name] += amount

    def moved(self, path: str, op: str, payload: int, seconds: float) -> None:
        """A slice arrived: `path` is "shm" or "tcp"."""
        with self._lock:
            self._sums[f"{path}.{op}.bytes"] += payload
            self._sums[f"{path}.{op}.seconds"] += seconds
            self._sums[f"{path}.{op}.slices"] += 1

    def read(self) -> dict[str, float]:
        with self._lock:
            return dict(self._sums)
