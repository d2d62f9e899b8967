"""Predictor of transfers: a time before the first byte, and bytes over a bandwidth; both learned.

The kind of a transfer is its tier and whether both ends share a host. Every pair (source, target)
has its own speed next to its kind's, so that a slow link or a busy sender shows.
"""

from services.conductor.predict import Predictor

# tier -> (seconds before the first byte, bytes/s), on one host and between hosts
_PRIORS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "hbm": ((5e-4, 4e9), (2e-3, 1e9)),
    "dram": ((5e-4, 4e9), (2e-3, 1e9)),
    "nvme": ((2e-3, 1.5e9), (3e-3, 8e8)),
    "oss": ((2e-2, 1e8), (2e-2, 1e8)),
}
_PRIOR_UNKNOWN = ((5e-3, 1e9), (5e-3, 5e8))

_NEAR, _FAR = "near", "far"


def _kind(tier: str, same_host: bool) -> str:
    return f"{tier}:{_NEAR if same_host else _FAR}"


def _prior_of(kind: str) -> tuple[float, float]:
    tier, _, distance = kind.partition(":")
    latency_s, bytes_per_s = _PRIORS.get(tier, _PRIOR_UNKNOWN)[distance == _FAR]
    return latency_s, 1.0 / bytes_per_s


def _features(size_bytes: float, _: float) -> tuple[float, ...]:
    return (1.0, size_bytes)


class TransferPredictor:
    """Seconds that bytes take from one owner to another."""

    def __init__(self) -> None:
        self._predictor = Predictor("transfer", _features, _prior_of)
        self.errors = self._predictor.errors

    def seconds(
        self, source: str, target: str, tier: str, same_host: bool, size_bytes: int
    ) -> float:
        """Predicted seconds; with 0 bytes: before the first one."""
        return self._predictor.seconds(_kind(tier, same_host), f"{source}>{target}", size_bytes)

    def learn(
        self,
        source: str,
        target: str,
        tier: str,
        same_host: bool,
        size_bytes: int,
        seconds: float,
        now_s: float,
    ) -> None:
        """What really happened. Impossible values are ignored."""
        if size_bytes > 0:
            kind, pair = _kind(tier, same_host), f"{source}>{target}"
            self._predictor.learn(kind, pair, size_bytes, 0.0, seconds, now_s)

    def forget(self, owner: str) -> None:
        """The owner left; its successor may sit elsewhere."""
        self._predictor.forget(lambda pair: owner in pair.split(">"))

    def stats(self) -> dict[str, int]:
        return self._predictor.stats()

    def check(self) -> None:
        self._predictor.check()
