"""Starting and closing an engine: names, folders, hosts, and what stays behind (nothing)."""

import gc
import os
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.transfer import BadTransfer, GrantRefused, TransferEngine
from tests.contract.transfer_wiring import (
    WIRINGS,
    array,
    fill,
    make_child,
    make_pair,
    read,
    start_engine,
)

MIB = 1 << 20


@pytest.fixture(params=WIRINGS)
def wiring(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_nothing_is_left_behind(wiring: str, tmp_path: Path) -> None:
    await _use_and_close(wiring, tmp_path)  # whatever the first use loads stays
    before = _left()
    for _ in range(3):
        await _use_and_close(wiring, tmp_path)
    assert _left() == before
    assert os.listdir(tmp_path) == []


async def _use_and_close(wiring: str, folder: Path) -> None:
    async with make_pair(wiring, folder) as pair:
        local, theirs = pair.near.allocate(3 * MIB), pair.far.allocate(3 * MIB)
        remote = pair.near.open(theirs.grant("r"))
        await pair.near.submit([read(local, remote, 3 * MIB)])
        forged = pair.near.open(msgspec.structs.replace(theirs.grant("r"), key=bytes(16)))
        with pytest.raises(GrantRefused):
            await pair.near.submit([read(local, forged, 5)])


def _left() -> tuple[int, list[str], int]:
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("memfd:moonpool")
    return len(os.listdir("/proc/self/fd")), [t.name for t in threading.enumerate()], maps


async def test_the_socket_file_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    async with make_child("shm", tmp_path, name="again", length=4096) as child:
        await child.kill()
    assert (tmp_path / "again.transfer").exists()
    engine = await start_engine("again", "shm", tmp_path)
    await engine.close()
    assert os.listdir(tmp_path) == []


async def test_a_name_is_taken_only_once_per_folder(tmp_path: Path) -> None:
    first = await start_engine("same", "shm", tmp_path)
    with pytest.raises(BadTransfer):
        await start_engine("same", "shm", tmp_path)
    assert os.listdir(tmp_path) == ["same.transfer"]
    await first.close()


async def test_a_folder_with_a_very_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with make_pair("shm", deep) as pair:
        local, theirs = pair.near.allocate(10), pair.far.allocate(10)
        sent = fill(theirs, 9)
        await pair.near.submit([read(local, pair.near.open(theirs.grant("r")), 10)])
        assert np.array_equal(array(local), sent)


@pytest.mark.parametrize(
    "wrong",
    [
        {"transports": ("shm", "pigeon")},
        {"transports": ("tcp", "tcp")},
        {"transports": "tcp"},
        {"listen_host": "192.0.2.77"},
        {"listen_host": ""},
        {"listen_host": "a..b"},
        {"run_dir": "/no"},
        {"host_id": None},
        {"endpoints_max": -1},
        {"endpoint_eviction": "whim"},
        *(
            {"name": name}
            for name in ("", "../x", "a/b", ".x", "a" * 70, "a\0b", "a\nb", "é", None)
        ),
    ],
)
async def test_a_start_that_cannot_work_says_why(tmp_path: Path, wrong: dict[str, object]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    good: dict[str, object] = {"name": "x", "host_id": "here", "run_dir": folder}
    before = _left()
    with pytest.raises(BadTransfer) as raised:
        await TransferEngine.start(**{**good, **wrong})  # type: ignore[arg-type]
    name, value = next(iter(wrong.items()))
    assert name == "name" or str(value).strip("()',").split(", '")[-1] in str(raised.value)
    assert os.listdir(folder) == []
    assert os.listdir(tmp_path) == ["run"]
    assert _left() == before


@pytest.mark.parametrize("name", ["a", "-7", "store-1.rack_4", "0" * 69])
async def test_a_name_may_be_as_long_as_its_socket_allows(tmp_path: Path, name: str) -> None:
    engine = await start_engine(name, "shm", tmp_path)
    assert os.listdir(tmp_path) == [f"{name}.transfer"]
    await engine.close()
