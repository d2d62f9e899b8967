"""How long slices took, as counts by upper bound. Not thread-safe."""

from bisect import bisect_left

BOUNDS_S: tuple[float, ...] = tuple(10e-6 * 2**i for i in range(20))  # 10 us to 5.2 s


class Latencies:
    """One path and direction."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # the last one is beyond all bounds
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile_s(self, q: float) -> float:
        """Linear within its bucket; the last bound beyond all; 0 while nothing was counted."""
        rank, below, lower = q * self.count, 0, 0.0
        for bound, inside in zip(BOUNDS_S, self.counts, strict=False):
            if inside and below + inside >= rank:
                return float(lower + (bound - lower) * max(0.0, rank - below) / inside)
            below += inside
            lower = bound
        return BOUNDS_S[-1] if below < self.count else 0.0

    def copy(self) -> "Latencies":
        made = Latencies()
        made.counts, made.sum_s = list(self.counts), self.sum_s
        return made
