"""What a transfer engine counted, as metrics: bytes, seconds, slices by transport and direction."""

from collections.abc import Callable, Mapping

from moonpool.telemetry import Metrics, names

_OPS = ("read", "write")


class TransferMetrics:
    """Brings the counters up to `stats()` of a transfer engine."""

    def __init__(self, metrics: Metrics, stats: Callable[[], Mapping[str, float]]) -> None:
        self._counters = {
            "bytes": metrics.counters(names.TRANSFER_BYTES),
            "seconds": metrics.counters(names.TRANSFER_SECONDS),
            "slices": metrics.counters(names.TRANSFER_SLICES),
        }
        self._stats = stats
        self._counted: dict[str, float] = {}

    def show(self) -> None:
        """Cheap; call it with each report."""
        for name, value in self._stats().items():
            transport, _, rest = name.partition(".")
            op, _, unit = rest.partition(".")
            if unit not in self._counters or op not in _OPS:
                continue
            before = self._counted.get(name, 0.0)
            self._counted[name] = value
            self._counters[unit].labels(transport, op).inc(value - before)
