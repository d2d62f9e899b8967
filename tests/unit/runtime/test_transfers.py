"""What a transfer engine counted, as metrics."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from moonpool.runtime import TransferMetrics
from moonpool.telemetry import Metrics, names
from moonpool.transfer import Op, TransferEngine, TransferRequest
from moonpool.transfer.latencies import BOUNDS_S, Latencies


class Engine:
    """Says what it is told to say."""

    def __init__(self, stats: dict[str, float]) -> None:
        self.said = stats
        self.took = {("tcp", "read"): Latencies()}

    def stats(self) -> Mapping[str, float]:
        return self.said

    def latencies(self) -> Mapping[tuple[str, str], Latencies]:
        return self.took


def test_counters_follow_what_the_engine_counted() -> None:
    metrics = Metrics()
    engine = Engine({"tcp.read.bytes": 10.0, "tcp.read.seconds": 2.0, "shm.peers": 1.0})
    shown = TransferMetrics(metrics, engine)
    shown.show()
    engine.said |= {"tcp.read.bytes": 15.0, "shm.write.bytes": 7.0}
    shown.show()
    shown.show()
    assert metrics.counter(names.TRANSFER_BYTES, "tcp", "read").value == 15.0
    assert metrics.counter(names.TRANSFER_BYTES, "shm", "write").value == 7.0
    assert len(list(metrics.counters(names.TRANSFER_BYTES).items())) == 2


@pytest.mark.parametrize(
    ("name", "spec", "labels"),
    [
        ("retries", names.TRANSFER_RETRIES, ()),
        ("failures.peer_lost", names.TRANSFER_FAILURES, ("peer_lost",)),
        ("refusals.bounds", names.TRANSFER_REFUSALS, ("bounds",)),
        ("tcp.bad_frames", names.TRANSFER_BAD_FRAMES, ("tcp",)),
        ("tcp.frames_corrupt", names.TRANSFER_CORRUPT, ("tcp",)),
        ("tcp.served_bytes", names.TRANSFER_SERVED_BYTES, ("tcp",)),
        ("tcp.nic.10.0.0.1.bytes", names.TRANSFER_NIC_BYTES, ("tcp", "10.0.0.1")),
        ("rdma.nic.mlx5_0.rests", names.TRANSFER_NIC_RESTS, ("rdma", "mlx5_0")),
    ],
)
def test_what_is_told_by_name_is_counted(
    name: str, spec: names.CounterSpec, labels: tuple[str, ...]
) -> None:
    metrics, engine = Metrics(), Engine({name: 3.0, "refusals": 9.0})
    shown = TransferMetrics(metrics, engine)
    shown.show()
    engine.said[name] = 5.0
    shown.show()
    assert metrics.counter(spec, *labels).value == 5.0


def test_connections_are_gauges() -> None:
    metrics, engine = Metrics(), Engine({"tcp.streams_open": 2.0, "shm.peers_served": 1.0})
    shown = TransferMetrics(metrics, engine)
    shown.show()
    engine.said["tcp.streams_open"] = 0.0
    shown.show()
    assert metrics.gauge(names.TRANSFER_ENDPOINTS, "tcp", "opened").value == 0.0
    assert metrics.gauge(names.TRANSFER_ENDPOINTS, "shm", "served").value == 1.0


def test_both_sides_of_the_histogram_have_the_same_bounds() -> None:
    assert names.TRANSFER_SLICE_SECONDS.buckets == BOUNDS_S


async def test_a_real_engine_shows_bytes_latencies_and_paths(tmp_path: Path) -> None:
    engine = await TransferEngine.start("e", host_id="h", run_dir=tmp_path, transports=("tcp",))
    try:
        local, theirs = engine.allocate(4096), engine.allocate(4096)
        remote = engine.open(theirs.grant("r"))
        await engine.submit([TransferRequest(Op.READ, local, 0, remote, 0, 4096)])
        metrics = Metrics()
        TransferMetrics(metrics, engine).show()
        assert metrics.counter(names.TRANSFER_BYTES, "tcp", "read").value == 4096
        assert metrics.histogram(names.TRANSFER_SLICE_SECONDS, "tcp", "read").count == 1
        assert metrics.gauge(names.TRANSFER_PATHS, "working").value == 1
        assert "moonpool_transfer_slice_seconds_bucket" in metrics.render()
    finally:
        await engine.close()
