"""What a transfer engine counted, as metrics."""

from collections.abc import Callable, Mapping
from typing import Protocol

from moonpool.telemetry import Metrics, names
from moonpool.transfer.latencies import Latencies

_OPS = ("read", "write")
_OPEN = {"streams_open": "opened", "peers_linked": "opened", "links_open": "opened"}
_SIDES = {**_OPEN, "streams_served": "served", "peers_served": "served"}


class Counted(Protocol):
    """A transfer engine, as far as it is looked at here."""

    def stats(self) -> Mapping[str, float]: ...

    def latencies(self) -> Mapping[tuple[str, str], Latencies]: ...


class TransferMetrics:
    """Brings the metrics up to what a transfer engine has counted."""

    def __init__(self, metrics: Metrics, engine: Counted) -> None:
        self._by_op = {
            "bytes": metrics.counters(names.TRANSFER_BYTES),
            "seconds": metrics.counters(names.TRANSFER_SECONDS),
            "slices": metrics.counters(names.TRANSFER_SLICES),
        }
        self._took = metrics.histograms(names.TRANSFER_SLICE_SECONDS)
        self._retries = metrics.counter(names.TRANSFER_RETRIES)
        self._by_prefix = {
            "failures": metrics.counters(names.TRANSFER_FAILURES),
            "refusals": metrics.counters(names.TRANSFER_REFUSALS),
        }
        self._by_transport = {
            "bad_frames": metrics.counters(names.TRANSFER_BAD_FRAMES),
            "frames_corrupt": metrics.counters(names.TRANSFER_CORRUPT),
            "served_bytes": metrics.counters(names.TRANSFER_SERVED_BYTES),
        }
        self._by_nic = {
            "bytes": metrics.counters(names.TRANSFER_NIC_BYTES),
            "rests": metrics.counters(names.TRANSFER_NIC_RESTS),
        }
        self._endpoints = metrics.gauges(names.TRANSFER_ENDPOINTS)
        self._paths = metrics.gauges(names.TRANSFER_PATHS)
        self._engine = engine
        self._counted: dict[str, float] = {}

    def show(self) -> None:
        """Cheap; call it with each report."""
        stats = self._engine.stats()
        for name, value in stats.items():
            first, _, rest = name.partition(".")
            op, _, unit = rest.partition(".")
            if op in _OPS and unit in self._by_op:
                self._rise(name, value, self._by_op[unit].labels(first, op).inc)
            elif op == "nic":
                nic, _, what = unit.rpartition(".")
                if what in self._by_nic:
                    self._rise(name, value, self._by_nic[what].labels(first, nic).inc)
            elif first in self._by_prefix and rest:
                self._rise(name, value, self._by_prefix[first].labels(rest).inc)
            elif rest in self._by_transport:
                self._rise(name, value, self._by_transport[rest].labels(first).inc)
            elif rest in _SIDES:
                self._endpoints.labels(first, _SIDES[rest]).set(value)
        self._rise("retries", stats.get("retries", 0.0), self._retries.inc)
        for state in ("working", "failed"):
            self._paths.labels(state).set(stats.get(f"paths_{state}", 0.0))
        for labels, took in self._engine.latencies().items():
            self._took.labels(*labels).load(took.counts, took.sum_s)

    def _rise(self, name: str, value: float, inc: Callable[[float], None]) -> None:
        before = self._counted.get(name, 0.0)
        if value != before:
            self._counted[name] = value
            inc(value - before)
