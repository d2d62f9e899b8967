"""Counting, and what readers see of it."""

import threading

import pytest

from moonpool.messages.metrics import read_metrics
from moonpool.telemetry import Metrics, names
from moonpool.telemetry.names import CounterSpec, GaugeSpec, HistogramSpec

HITS = CounterSpec("t_hits_total", "Hits.", ("tier",), series_max=3)
DEPTH = GaugeSpec("t_depth", "Depth.")
WAIT = HistogramSpec("t_wait_seconds", "Wait.", (0.1, 1.0, 10.0))


def test_exposition_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.counter(HITS, 'a"b\\c\nd').inc(2)
    metrics.gauge(DEPTH).set(2.5)
    wait = metrics.histogram(WAIT)
    for value in (0.05, 0.1, 0.5, 20.0):
        wait.observe(value)
    text = metrics.render()
    assert '# TYPE t_hits_total counter\nt_hits_total{tier="a\\"b\\\\c\\nd"} 2\n' in text
    assert "# HELP t_depth Depth.\n# TYPE t_depth gauge\nt_depth 2.5\n" in text
    assert (
        't_wait_seconds_bucket{le="0.1"} 2\n'
        't_wait_seconds_bucket{le="1"} 3\n'
        't_wait_seconds_bucket{le="10"} 3\n'
        't_wait_seconds_bucket{le="+Inf"} 4\n'
        "t_wait_seconds_sum 20.65\n"
        "t_wait_seconds_count 4\n"
    ) in text


def test_the_same_series_comes_back_and_wrong_labels_are_refused() -> None:
    metrics = Metrics()
    assert metrics.counter(HITS, "hbm") is metrics.counter(HITS, "hbm")
    with pytest.raises(ValueError, match="labels"):
        metrics.counter(HITS, "hbm", "full")
    with pytest.raises(ValueError, match="labels"):
        metrics.gauge(DEPTH, "x")


def test_label_sets_are_bounded_and_the_rest_is_counted_together() -> None:
    metrics = Metrics()
    for number in range(10):
        metrics.counter(HITS, f"tier{number}").inc()
    family = metrics.counters(HITS)
    values = {labels["tier"]: series.value for labels, series in family.items()}
    assert values == {"tier0": 1, "tier1": 1, "tier2": 1, "other": 7}
    assert metrics.counter(names.SERIES_OVERFLOW).value == 7


def test_a_snapshot_survives_the_wire_and_names_its_quantiles() -> None:
    metrics = Metrics()
    metrics.counter(HITS, "dram").inc(3)
    wait = metrics.histogram(WAIT)
    for _ in range(100):
        wait.observe(0.5)
    snapshot = metrics.snapshot(service="store", id="n1", epoch="e", unix_s=1.0, uptime_s=2.0)
    again = read_metrics(snapshot.model_dump_json().encode())
    assert again == snapshot
    hits = next(sample for sample in again.samples if sample.name == "t_hits_total")
    assert (hits.kind, hits.labels, hits.value) == ("counter", {"tier": "dram"}, 3.0)
    histogram = next(each for each in again.histograms if each.name == "t_wait_seconds")
    assert histogram.count == 100
    assert histogram.p50 == pytest.approx(0.55)
    assert histogram.buckets == [(0.1, 0), (1.0, 100), (10.0, 100)]


def test_quantiles_of_nothing_are_none_and_of_the_huge_are_the_last_bound() -> None:
    wait = Metrics().histogram(WAIT)
    assert wait.quantile(0.5) is None
    wait.observe(1e9)
    assert wait.quantile(0.5) == 10.0


def test_a_gauge_can_follow_a_function() -> None:
    held = [1, 2, 3]
    gauge = Metrics().gauge(DEPTH)
    gauge.follow(lambda: float(len(held)))
    held.pop()
    assert gauge.value == 2.0


def test_threads_lose_no_counts() -> None:
    counter = Metrics().counter(HITS, "x")

    def count() -> None:
        for _ in range(50_000):
            counter.inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 200_000


def test_every_known_metric_is_well_named_and_named_once() -> None:
    assert len(names.ALL) > 40
    assert len({spec.name for spec in names.ALL}) == len(names.ALL)
    for spec in names.ALL:
        assert spec.name.startswith("moonpool_")
        assert spec.name.endswith("_total") is isinstance(spec, CounterSpec), spec.name
        assert spec.help.endswith("."), spec.name
        if isinstance(spec, HistogramSpec):
            assert list(spec.buckets) == sorted(spec.buckets)
