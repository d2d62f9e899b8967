"""Counters of one engine. Increments from threads are lock-protected where they must be exact."""

import threading
from collections import defaultdict


class Tally:
    """Named sums, `"tcp.read.bytes"` and the like."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = defaultdict(float)
        self._moved: dict[tuple[str, str], list[float]] = {}  # bytes, seconds, slices

    def add(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self._sums[name] += amount

    def moved(self, path: str, op: str, payload: int, seconds: float) -> None:
        """A slice arrived: `path` is "shm" or "tcp"."""
        with self._lock:
            moved = self._moved.setdefault((path, op), [0.0, 0.0, 0.0])
            moved[0] += payload
            moved[1] += seconds
            moved[2] += 1

    def read(self) -> dict[str, float]:
        with self._lock:
            out = dict(self._sums)
            for (path, op), moved in self._moved.items():
                for name, amount in zip(("bytes", "seconds", "slices"), moved, strict=True):
                    out[f"{path}.{op}.{name}"] = amount
            return out
