"""The last snapshot of every service, and the page they make together. Pure."""

from collections.abc import Iterator

from moonpool.messages.metrics import HistogramSampleV1, MetricsSnapshotV1
from moonpool.telemetry import names

SERVICES_MAX = 4096  # beyond it new ones are left out, and counted

_HELP = {spec.name: spec.help for spec in names.ALL}


class Page:
    """`take` snapshots as they come, `render` at any time."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._last: dict[tuple[str, str], tuple[float, MetricsSnapshotV1]] = {}
        self._taken = 0
        self._left_out = 0

    def take(self, snapshot: MetricsSnapshotV1, now_s: float) -> None:
        key = (snapshot.service, snapshot.id)
        if key not in self._last and len(self._last) >= SERVICES_MAX:
            self._left_out += 1
            return
        self._taken += 1
        self._last[key] = (now_s, snapshot)

    def forget(self, now_s: float) -> None:
        """Drops whoever fell silent: old numbers look like live ones on a chart."""
        for key, (heard_s, _) in list(self._last.items()):
            if now_s - heard_s > self._silence_s:
                del self._last[key]

    def render(self, now_s: float) -> str:
        """Prometheus text, version 0.0.4; every series says `service` and `id`."""
        self.forget(now_s)
        families: dict[str, tuple[str, list[str]]] = {}
        for _, snapshot in self._last.values():
            who = {"service": snapshot.service, "id": snapshot.id}
            for sample in snapshot.samples:
                _, lines = families.setdefault(sample.name, (sample.kind, []))
                lines.append(f"{sample.name}{_labels(sample.labels | who)} {sample.value!r}")
            for histogram in snapshot.histograms:
                _, lines = families.setdefault(histogram.name, ("histogram", []))
                lines += _histogram(histogram, histogram.labels | who)
        out: list[str] = []
        for name, (kind, lines) in sorted(families.items()):
            out += [f"# HELP {name} {_HELP.get(name, name)}", f"# TYPE {name} {kind}", *lines]
        return "\n".join(out) + "\n"

    def stats(self) -> dict[str, int]:
        return {"services": len(self._last), "taken": self._taken, "left_out": self._left_out}


def _histogram(sample: HistogramSampleV1, labels: dict[str, str]) -> Iterator[str]:
    for bound, count in [*sample.buckets, (float("inf"), sample.count)]:
        le = "+Inf" if bound == float("inf") else repr(bound)
        yield f"{sample.name}_bucket{_labels(labels | {'le': le})} {count}"
    yield f"{sample.name}_sum{_labels(labels)} {sample.sum!r}"
    yield f"{sample.name}_count{_labels(labels)} {sample.count}"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
