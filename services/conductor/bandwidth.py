"""Predictor of transfers: a time before the first byte, and bytes over a bandwidth; both learned.

The kind of a transfer is its tier and how far apart both ends are. Every pair (source, target)
has its own speed next to its kind's, so that a slow link or a busy sender shows.
"""

import math
from functools import cache

from services.conductor.predict import Predictor
from services.conductor.topology import Distance

# (seconds before the first byte, bytes/s) of memory at each distance
_LINKS: dict[Distance, tuple[float, float]] = {
    Distance.HOST: (5e-4, 4e9),
    Distance.RACK: (1e-3, 2e9),
    Distance.NET: (2e-3, 1e9),
    Distance.ZONES: (1e-2, 2e8),
}
# (seconds, bytes/s) of what lies before the link
_TIERS: dict[str, tuple[float, float]] = {
    "hbm": (0.0, math.inf),
    "dram": (0.0, math.inf),
    "nvme": (1.5e-3, 1.5e9),
    "oss": (2e-2, 1e8),
}
_TIER_UNKNOWN = (5e-3, 1e9)

_BASES_MAX = 4096


@cache
def _kind(tier: str, distance: Distance) -> str:
    return f"{tier}:{distance}"


@cache
def _prior_of(kind: str) -> tuple[float, float]:
    """The slower of tier and link: both move at once, and wait one after the other."""
    tier, _, name = kind.partition(":")
    tier_s, tier_rate = _TIERS.get(tier, _TIER_UNKNOWN)
    link_s, link_rate = _LINKS[Distance(name)]
    return tier_s + link_s, 1.0 / min(tier_rate, link_rate)


def _features(size_bytes: float, _: float) -> tuple[float, ...]:
    return (1.0, size_bytes)


class TransferPredictor:
    """Seconds that bytes take from one owner to another."""

    def __init__(self) -> None:
        self._predictor = Predictor("transfer", _features, _prior_of)
        self.errors = self._predictor.errors
        # A plan asks for few sizes of many pairs: worked out once, until something is learned.
        self._bases: dict[tuple[str, int], float] = {}

    def seconds(
        self, source: str, target: str, tier: str, distance: Distance, size_bytes: int
    ) -> float:
        """Predicted seconds; with 0 bytes: before the first one."""
        kind = _kind(tier, distance)
        return self._base(kind, size_bytes) * self._predictor.ratio(kind, f"{source}>{target}")

    def lead_and_all(
        self, source: str, target: str, tier: str, distance: Distance, size_bytes: int
    ) -> tuple[float, float]:
        """Predicted seconds before the first byte, and of all of it."""
        kind = _kind(tier, distance)
        ratio = self._predictor.ratio(kind, f"{source}>{target}")
        return self._base(kind, 0) * ratio, self._base(kind, size_bytes) * ratio

    def _base(self, kind: str, size_bytes: int) -> float:
        """Of the typical pair."""
        base_s = self._bases.get((kind, size_bytes))
        if base_s is None:
            if len(self._bases) >= _BASES_MAX:
                self._bases.clear()
            base_s = self._bases[kind, size_bytes] = self._predictor.base(kind, size_bytes)
        return base_s

    def learn(
        self,
        source: str,
        target: str,
        tier: str,
        distance: Distance,
        size_bytes: int,
        seconds: float,
        now_s: float,
    ) -> None:
        """What really happened. Impossible values are ignored."""
        if size_bytes > 0:
            kind, pair = _kind(tier, distance), f"{source}>{target}"
            self._predictor.learn(kind, pair, size_bytes, 0.0, seconds, now_s)
            self._bases.clear()

    def forget(self, owner: str) -> None:
        """The owner left; its successor may sit elsewhere."""
        self._predictor.forget(lambda pair: owner in pair.split(">"))

    def stats(self) -> dict[str, int]:
        return self._predictor.stats()

    def check(self) -> None:
        self._predictor.check()
