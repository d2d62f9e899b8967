"""What a transfer engine counted, as metrics: bytes by transport and direction."""

from collections.abc import Callable, Mapping

from moonpool.telemetry import Metrics, names

_OPS = ("read", "write")


class TransferMetrics:
    """Brings the counters up to `stats()` of a transfer engine."""

    def __init__(self, metrics: Metrics, stats: Callable[[], Mapping[str, float]]) -> None:
        self._counters = metrics.counters(names.TRANSFER_BYTES)
        self._stats = stats
        self._counted: dict[tuple[str, str], float] = {}

    def show(self) -> None:
        """Cheap; call it with each report."""
        for name, value in self._stats().items():
            transport, _, rest = name.partition(".")
            op, _, unit = rest.partition(".")
            if unit != "bytes" or op not in _OPS:
                continue
            before = self._counted.get((transport, op), 0.0)
            self._counted[transport, op] = value
            self._counters.labels(transport, op).inc(value - before)
