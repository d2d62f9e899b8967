"""One series each of a counter, a gauge and a histogram: what the hot path touches.

No locks: in CPython an attribute's `+=` has no switch point between load and store when both are
plain numbers, so threads lose no counts. Keep the object at hand instead of looking it up anew.
"""

from bisect import bisect_left
from collections.abc import Callable


class Counter:
    """Only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """`amount` >= 0"""
        self.value += amount


class Gauge:
    """Goes up and down; or asks a function when somebody looks."""

    __slots__ = ("_ask", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._ask: Callable[[], float] | None = None

    @property
    def value(self) -> float:
        return self._ask() if self._ask is not None else self._value

    def set(self, value: float) -> None:
        self._value = value

    def inc(self, amount: float = 1.0) -> None:
        self._value += amount

    def dec(self, amount: float = 1.0) -> None:
        self._value -= amount

    def follow(self, ask: Callable[[], float]) -> None:
        """From now on the value is `ask()`: cheap, and called on whatever thread looks."""
        self._ask = ask


class Histogram:
    """Counts observations by upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # not cumulative; the last one is beyond all bounds
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def load(self, counts: list[int], sum: float) -> None:
        """What was counted elsewhere by the same bounds. ValueError when there are not as many."""
        if len(counts) != len(self.counts):
            raise ValueError(f"{len(counts)} counts for {len(self.counts)} buckets")
        self.counts[:] = counts
        self.sum = sum

    def cumulative(self) -> list[int]:
        """Observations at or below each bound; without the infinite one."""
        total, out = 0, []
        for count in self.counts[:-1]:
            total += count
            out.append(total)
        return out

    def quantile(self, q: float) -> float | None:
        """Linear within its bucket, as Prometheus does; the last finite bound beyond them; None
        while nothing was observed."""
        count = self.count
        if count == 0:
            return None
        rank, below, lower = q * count, 0, 0.0
        for bound, inside in zip(self.bounds, self.counts, strict=False):
            if inside and below + inside >= rank:
                return lower + (bound - lower) * max(0.0, rank - below) / inside
            below += inside
            lower = bound
        return self.bounds[-1]
