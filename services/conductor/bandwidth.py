"""Predictor of transfers: bytes over a learned bandwidth, plus the time before the first byte.

Every pair (source, target, tier) learns its own bandwidth; a pair that was never seen borrows from
its class (same host or not, and the tier), and a class that was never seen from the prior.
"""

import math
from dataclasses import dataclass

from services.conductor.regression import ErrorTrack

_STEP_MIN = 0.1  # weight of one more sample
_BORROW_SAMPLES = 3.0  # the class counts as much as so many samples of the pair
_SMALL_BYTES = 64 << 10  # below it time says nothing of bandwidth
_PAIRS_MAX = 65536
_BANDWIDTH_MIN = 1e5  # bytes/s
_BANDWIDTH_MAX = 1e12

# tier -> bytes/s when source and target share a host, and when they do not
_PRIORS: dict[str, tuple[float, float]] = {
    "hbm": (4e9, 1e9),
    "dram": (4e9, 1e9),
    "nvme": (1.5e9, 8e8),
    "oss": (1e8, 1e8),
}
_PRIOR_UNKNOWN = (1e9, 5e8)
# tier -> seconds from asking to the first byte (same host, other host)
_LATENCIES_S: dict[str, tuple[float, float]] = {
    "hbm": (1e-3, 2e-3),
    "dram": (1e-3, 2e-3),
    "nvme": (2e-3, 3e-3),
    "oss": (2e-2, 2e-2),
}
_LATENCY_UNKNOWN_S = (5e-3, 5e-3)


@dataclass(slots=True)
class _Rate:
    """A bandwidth as the mean of its logarithm: twice and half are equally far off."""

    log_bytes_per_s: float = 0.0
    samples: int = 0

    def learn(self, bytes_per_s: float) -> None:
        self.samples += 1
        step = max(_STEP_MIN, 1.0 / self.samples)
        self.log_bytes_per_s += step * (math.log(bytes_per_s) - self.log_bytes_per_s)


class TransferPredictor:
    """Seconds that bytes take from one owner to another."""

    def __init__(self) -> None:
        self.errors = ErrorTrack()
        self._pairs: dict[tuple[str, str, str], _Rate] = {}
        self._classes: dict[tuple[bool, str], _Rate] = {}

    def seconds(
        self, source: str, target: str, tier: str, same_host: bool, size_bytes: int
    ) -> float:
        """Predicted seconds, asking included; 0.0 for nothing."""
        if size_bytes <= 0:
            return 0.0
        bandwidth = self.bandwidth(source, target, tier, same_host)
        return self.latency(tier, same_host) + size_bytes / bandwidth

    def latency(self, tier: str, same_host: bool) -> float:
        """Seconds before the first byte."""
        near, far = _LATENCIES_S.get(tier, _LATENCY_UNKNOWN_S)
        return near if same_host else far

    def bandwidth(self, source: str, target: str, tier: str, same_host: bool) -> float:
        """Predicted bytes/s, within sane bounds."""
        shared = self._classes.get((same_host, tier))
        if shared and shared.samples:
            log_rate = shared.log_bytes_per_s
        else:
            near, far = _PRIORS.get(tier, _PRIOR_UNKNOWN)
            log_rate = math.log(near if same_host else far)
        pair = self._pairs.get((source, target, tier))
        if pair:
            own = pair.samples / (pair.samples + _BORROW_SAMPLES)
            log_rate += own * (pair.log_bytes_per_s - log_rate)
        return min(max(math.exp(log_rate), _BANDWIDTH_MIN), _BANDWIDTH_MAX)

    def learn(
        self,
        source: str,
        target: str,
        tier: str,
        same_host: bool,
        size_bytes: int,
        seconds: float,
    ) -> None:
        """What really happened. Impossible values are ignored."""
        if size_bytes <= 0 or not 0.0 < seconds < math.inf:
            return
        predicted = self.seconds(source, target, tier, same_host, size_bytes)
        self.errors.note(predicted, seconds)
        if size_bytes < _SMALL_BYTES:
            return
        busy_s = max(seconds - self.latency(tier, same_host), seconds * 0.1)
        rate = min(max(size_bytes / busy_s, _BANDWIDTH_MIN), _BANDWIDTH_MAX)
        self._classes.setdefault((same_host, tier), _Rate()).learn(rate)
        key = (source, target, tier)
        pair = self._pairs.get(key)
        if pair is None:
            if len(self._pairs) >= _PAIRS_MAX:
                del self._pairs[next(iter(self._pairs))]
            pair = self._pairs[key] = _Rate()
        pair.learn(rate)

    def forget(self, owner: str) -> None:
        """The owner left; its successor may sit elsewhere."""
        for key in [key for key in self._pairs if owner in key[:2]]:
            del self._pairs[key]

    def stats(self) -> dict[str, int]:
        return {"pairs": len(self._pairs), "classes": len(self._classes)}

    def check(self) -> None:
        low, high = math.log(_BANDWIDTH_MIN) - 1e-9, math.log(_BANDWIDTH_MAX) + 1e-9
        for rate in (*self._pairs.values(), *self._classes.values()):
            assert rate.samples > 0, "a rate rests on samples"
            assert low <= rate.log_bytes_per_s <= high, "a rate is within bounds"
        assert len(self._pairs) <= _PAIRS_MAX
