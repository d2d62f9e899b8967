"""Bytes moved, as metrics."""

from moonpool.runtime import TransferMetrics
from moonpool.telemetry import Metrics, names


def test_counters_follow_what_the_engine_counted() -> None:
    metrics, stats = Metrics(), {"tcp.read.bytes": 10.0, "tcp.read.seconds": 2.0, "shm.peers": 1.0}
    shown = TransferMetrics(metrics, lambda: stats)
    shown.show()
    stats |= {"tcp.read.bytes": 15.0, "shm.write.bytes": 7.0}
    shown.show()
    shown.show()
    assert metrics.counter(names.TRANSFER_BYTES, "tcp", "read").value == 15.0
    assert metrics.counter(names.TRANSFER_BYTES, "shm", "write").value == 7.0
    assert len(list(metrics.counters(names.TRANSFER_BYTES).items())) == 2
