"""Counters of one engine. Increments from threads are lock-protected where they must be exact."""

import threading
from collections import defaultdict

from moonpool.transfer.latencies import Latencies


class Tally:
    """Named sums, `"tcp.read.bytes"` and the like."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = defaultdict(float)
        self._moved: dict[tuple[str, str], list[float]] = {}  # bytes, seconds, slices
        self._took: dict[tuple[str, str], Latencies] = {}

    def add(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self._sums[name] += amount

    def moved(self, path: str, op: str, payload: int, seconds: float) -> None:
        """A slice arrived: `path` is "shm" or "tcp"."""
        with self._lock:
            moved = self._moved.get((path, op))
            if moved is None:
                moved = self._moved[(path, op)] = [0.0, 0.0, 0.0]
                self._took[(path, op)] = Latencies()
            moved[0] += payload
            moved[1] += seconds
            moved[2] += 1
            self._took[(path, op)].add(seconds)

    def latencies(self) -> dict[tuple[str, str], Latencies]:
        """Seconds of slices by path and direction, as they are now."""
        with self._lock:
            return {key: took.copy() for key, took in self._took.items()}

    def read(self) -> dict[str, float]:
        with self._lock:
            out = dict(self._sums)
            for (path, op), moved in self._moved.items():
                for name, amount in zip(("bytes", "seconds", "slices"), moved, strict=True):
                    out[f"{path}.{op}.{name}"] = amount
                if moved[1] > 0:
                    out[f"{path}.{op}.gb_per_s"] = moved[0] / moved[1] / 1e9
                took = self._took[(path, op)]
                out[f"{path}.{op}.p50_s"] = took.quantile_s(0.5)
                out[f"{path}.{op}.p99_s"] = took.quantile_s(0.99)
            return out
