"""A line per change of a path, with both ends, and none besides."""

import logging

import pytest

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import path_log
from moonpool.transfer.latencies import BOUNDS_S, Latencies
from moonpool.transfer.path_log import PathLog


def grant(segment: str = "store-1") -> RegionGrant:
    return RegionGrant(
        segment=segment,
        epoch="e",
        host_id="h",
        endpoints=[Endpoint("shm", "/run/s"), Endpoint("tcp", "10.0.0.2:4711")],
        region=1,
        offset=0,
        length=1,
        rights="r",
        key=bytes(16),
    )


def test_a_path_is_told_of_when_it_opens_fails_and_heals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    paths = PathLog("decode-7")
    for _ in range(3):
        paths.worked(grant(), "shm")
    for _ in range(3):
        paths.failed(grant(), "shm", "store-1 went away")
    for _ in range(3):
        paths.worked(grant(), "tcp")
    paths.worked(grant(), "shm")
    assert [record.getMessage() for record in caplog.records] == [
        "path open: decode-7 -> store-1 over shm (/run/s)",
        "path failed: decode-7 -> store-1 over shm (/run/s): store-1 went away",
        "path open: decode-7 -> store-1 over tcp (10.0.0.2:4711), in place of shm",
        "path open again: decode-7 -> store-1 over shm (/run/s)",
    ]
    assert paths.stats() == {"paths_working": 2, "paths_failed": 0}


def test_peers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_log, "PEERS_MAX", 3)
    paths = PathLog("e")
    for i in range(10):
        paths.worked(grant(f"peer-{i}"), "tcp")
    assert paths.stats()["paths_working"] == 3


def test_quantiles_lie_within_the_bucket_that_holds_them() -> None:
    took = Latencies()
    assert took.quantile_s(0.5) == 0.0
    for _ in range(99):
        took.add(30e-6)
    took.add(60.0)
    assert 20e-6 < took.quantile_s(0.5) <= 40e-6
    assert took.quantile_s(0.99) <= 40e-6
    assert took.quantile_s(1.0) == BOUNDS_S[-1]
    assert took.count == 100
