"""The registry of one process: every series by metric and labels, and its two renderings."""

from collections.abc import Callable, Iterator
from typing import Generic, Literal, TypeVar

from moonpool.messages.metrics import HistogramSampleV1, MetricSampleV1, MetricsSnapshotV1
from moonpool.telemetry import names
from moonpool.telemetry.names import CounterSpec, GaugeSpec, HistogramSpec, Spec
from moonpool.telemetry.series import Counter, Gauge, Histogram

Series = TypeVar("Series")

OTHER = "other"  # label value that takes what goes beyond `series_max`


class Family(Generic[Series]):
    """All series of one metric, at most `series_max` and one for the rest."""

    def __init__(self, spec: Spec, make: Callable[[], Series], overflow: Counter | None) -> None:
        self.spec = spec
        self._make = make
        self._overflow = overflow
        self._series: dict[tuple[str, ...], Series] = {}
        if not spec.labels:
            self.labels()

    def labels(self, *values: str) -> Series:
        """The series of these label values, in the order of `spec.labels`; made at first use.
        ValueError when the count differs."""
        series = self._series.get(values)
        if series is not None:
            return series
        if len(values) != len(self.spec.labels):
            raise ValueError(f"{self.spec.name} has labels {self.spec.labels}, not {values}")
        if len(self._series) >= self.spec.series_max:
            if self._overflow is not None:
                self._overflow.inc()
            values = (OTHER,) * len(values)
        # setdefault: two threads that come at once must end up with the same object.
        return self._series.setdefault(values, self._make())

    def items(self) -> Iterator[tuple[dict[str, str], Series]]:
        for values, series in list(self._series.items()):
            yield dict(zip(self.spec.labels, values, strict=True)), series


class Metrics:
    """Made once per process. Asking for the same metric again gives the same series."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}
        self._overflow = self.counter(names.SERIES_OVERFLOW)

    def counter(self, spec: CounterSpec, *labels: str) -> Counter:
        """The one series of `labels`. Keep it: looking it up costs more than counting."""
        return self.counters(spec).labels(*labels)

    def gauge(self, spec: GaugeSpec, *labels: str) -> Gauge:
        return self.gauges(spec).labels(*labels)

    def histogram(self, spec: HistogramSpec, *labels: str) -> Histogram:
        return self.histograms(spec).labels(*labels)

    def counters(self, spec: CounterSpec) -> Family[Counter]:
        """The whole family, for labels that are known only at run time."""
        family = self._families.get(spec.name)
        if family is None:
            overflow = getattr(self, "_overflow", None)
            family = self._families.setdefault(spec.name, Family(spec, Counter, overflow))
        return family  # type: ignore[return-value]  # one name, one kind: names.py is the list

    def gauges(self, spec: GaugeSpec) -> Family[Gauge]:
        family = self._families.get(spec.name)
        if family is None:
            family = self._families.setdefault(spec.name, Family(spec, Gauge, self._overflow))
        return family  # type: ignore[return-value]

    def histograms(self, spec: HistogramSpec) -> Family[Histogram]:
        family = self._families.get(spec.name)
        if family is None:
            made = Family(spec, lambda: Histogram(spec.buckets), self._overflow)
            family = self._families.setdefault(spec.name, made)
        return family  # type: ignore[return-value]

    def render(self) -> str:
        """Prometheus text exposition, version 0.0.4."""
        lines: list[str] = []
        for name, family in sorted(self._families.items()):
            lines += [f"# HELP {name} {family.spec.help}", f"# TYPE {name} {_kind(family.spec)}"]
            for labels, series in family.items():
                if isinstance(series, Histogram):
                    lines += _histogram_lines(name, labels, series)
                else:
                    lines.append(f"{name}{_label_text(labels)} {_number(series.value)}")
        return "\n".join(lines) + "\n"

    def snapshot(
        self, *, service: str, id: str, epoch: str, unix_s: float, uptime_s: float
    ) -> MetricsSnapshotV1:
        samples: list[MetricSampleV1] = []
        histograms: list[HistogramSampleV1] = []
        for name, family in sorted(self._families.items()):
            for labels, series in family.items():
                if isinstance(series, Histogram):
                    histograms.append(_histogram_sample(name, labels, series))
                elif isinstance(series, Counter):
                    samples.append(_sample(name, "counter", labels, series.value))
                else:
                    samples.append(_sample(name, "gauge", labels, series.value))
        return MetricsSnapshotV1(
            service=service,
            id=id,
            epoch=epoch,
            unix_s=unix_s,
            uptime_s=uptime_s,
            samples=samples,
            histograms=histograms,
        )

    def stats(self) -> dict[str, int]:
        series = sum(1 for family in self._families.values() for _ in family.items())
        return {"families": len(self._families), "series": series}


def _kind(spec: Spec) -> str:
    if isinstance(spec, CounterSpec):
        return "counter"
    return "gauge" if isinstance(spec, GaugeSpec) else "histogram"


def _sample(
    name: str, kind: Literal["counter", "gauge"], labels: dict[str, str], value: float
) -> MetricSampleV1:
    return MetricSampleV1(name=name, kind=kind, labels=labels, value=value)


def _histogram_sample(name: str, labels: dict[str, str], series: Histogram) -> HistogramSampleV1:
    return HistogramSampleV1(
        name=name,
        labels=labels,
        count=series.count,
        sum=series.sum,
        p50=series.quantile(0.5),
        p95=series.quantile(0.95),
        p99=series.quantile(0.99),
        buckets=list(zip(series.bounds, series.cumulative(), strict=True)),
    )


def _histogram_lines(name: str, labels: dict[str, str], series: Histogram) -> list[str]:
    lines = []
    for bound, count in zip(series.bounds, series.cumulative(), strict=True):
        lines.append(f"{name}_bucket{_label_text(labels | {'le': _number(bound)})} {count}")
    count = series.count
    lines.append(f"{name}_bucket{_label_text(labels | {'le': '+Inf'})} {count}")
    lines.append(f"{name}_sum{_label_text(labels)} {_number(series.sum)}")
    lines.append(f"{name}_count{_label_text(labels)} {count}")
    return lines


def _label_text(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{key}="{_escape(value)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
