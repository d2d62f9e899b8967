"""What a running engine says of its paths: in the log, and in numbers."""

import logging
from pathlib import Path

import msgspec
import pytest

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import TransferEngine
from tests.contract.transfer_wiring import IN_VM, read, write

SIZE = 3 << 20
pytestmark = pytest.mark.skipif(IN_VM, reason="other transports are tried there")


async def start(name: str, folder: Path) -> TransferEngine:
    return await TransferEngine.start(
        name, host_id="here", run_dir=folder, transports=("shm", "tcp")
    )


def without_its_socket(grant: RegionGrant, folder: Path) -> RegionGrant:
    """The shm socket has gone from where the grant says it is."""
    ends = [
        Endpoint("shm", str(folder / "gone.sock")) if end.transport == "shm" else end
        for end in grant.endpoints
    ]
    return msgspec.structs.replace(grant, endpoints=ends)


async def test_the_log_names_both_ends_when_a_path_opens_fails_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "moonpool.transfer")
    near, far = await start("near", tmp_path), await start("far", tmp_path)
    try:
        mine, grant = near.allocate(SIZE), far.allocate(SIZE).grant("rw")
        where = {end.transport: end.address for end in grant.endpoints}
        for _ in range(3):
            await near.submit([read(mine, near.open(grant), SIZE)])
        gone = near.open(without_its_socket(grant, tmp_path))
        for _ in range(3):
            await near.submit([read(mine, gone, SIZE)])
        lines = [record.getMessage() for record in caplog.records]
        assert lines[0] == f"path open: near -> far over shm ({where['shm']})"
        assert lines[1].startswith(f"path failed: near -> far over shm ({tmp_path}/gone.sock): ")
        assert lines[2] == f"path open: near -> far over tcp ({where['tcp']}), in place of shm"
        assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
    finally:
        await near.close()
        await far.close()


@pytest.mark.parametrize("kind", ["shm", "tcp"])
async def test_stats_tell_speed_and_percentiles_of_each_direction(
    tmp_path: Path, kind: str
) -> None:
    near, far = await start("near", tmp_path), await start("far", tmp_path)
    try:
        mine, grant = near.allocate(SIZE), far.allocate(SIZE).grant("rw")
        remote = near.open(grant if kind == "shm" else without_its_socket(grant, tmp_path))
        assert f"{kind}.read.p50_s" not in near.stats()
        for _ in range(4):
            await near.submit([read(mine, remote, SIZE)])
        await near.submit([write(mine, remote, SIZE)])
        stats = near.stats()
        for op, times in (("read", 4), ("write", 1)):
            of = {key.rpartition(".")[2]: stats[key] for key in stats if f"{kind}.{op}." in key}
            assert of["bytes"] == times * SIZE
            assert of["slices"] == times
            assert 0 < of["p50_s"] <= of["p99_s"]
            assert of["p50_s"] <= 2 * of["seconds"]
            assert of["gb_per_s"] == pytest.approx(of["bytes"] / of["seconds"] / 1e9)
        assert stats["paths_working"] == 1
        assert near.latencies()[(kind, "read")].count == 4
    finally:
        await near.close()
        await far.close()
