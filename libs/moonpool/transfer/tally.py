"""Counters of one engine. Increments from threads are lock-protected where they must be exact."""

import threading
from collections import defaultdict

from moonpool.transfer.latencies import Latencies


class _Moved:
    """By one path in one direction."""

    __slots__ = ("payload", "seconds", "slices", "took")

    def __init__(self) -> None:
        self.payload = self.seconds = self.slices = 0.0
        self.took = Latencies()


class Tally:
    """Named sums, `"tcp.read.bytes"` and the like."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = defaultdict(float)
        self._moved: dict[tuple[str, str], _Moved] = {}

    def add(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self._sums[name] += amount

    def moved(self, path: str, op: str, payload: int, seconds: float) -> None:
        """A slice arrived: `path` is "shm" or "tcp"."""
        with self._lock:
            moved = self._moved.get((path, op))
            if moved is None:
                moved = self._moved[(path, op)] = _Moved()
            moved.payload += payload
            moved.seconds += seconds
            moved.slices += 1
            moved.took.add(seconds)

    def latencies(self) -> dict[tuple[str, str], Latencies]:
        """Seconds of slices by path and direction, as they are now."""
        with self._lock:
            return {key: moved.took.copy() for key, moved in self._moved.items()}

    def read(self) -> dict[str, float]:
        with self._lock:
            out = dict(self._sums)
            for (path, op), moved in self._moved.items():
                out[f"{path}.{op}.bytes"] = moved.payload
                out[f"{path}.{op}.seconds"] = moved.seconds
                out[f"{path}.{op}.slices"] = moved.slices
                if moved.seconds > 0:
                    out[f"{path}.{op}.gb_per_s"] = moved.payload / moved.seconds / 1e9
                out[f"{path}.{op}.p50_s"] = moved.took.quantile_s(0.5)
                out[f"{path}.{op}.p99_s"] = moved.took.quantile_s(0.99)
            return out
