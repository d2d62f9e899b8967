"""What `moonpool store` does with values, over a node in this process."""

import argparse
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from moonpool.bus import NoResponder
from moonpool.client import BadRange, LastCopy, UnknownNode
from moonpool.messages import CallerError
from moonpool.messages.store import StatsReply
from services.cli.verbs import store as verb
from services.cli.verbs.draining import drain
from services.cli.verbs.values import ACTIONS
from tests.support.store_worlds import make_value, memory_mesh

Run = Callable[..., Awaitable[int]]
Out = pytest.CaptureFixture[bytes]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers())
    async with memory_mesh(2) as store:

        async def run(*arguments: str) -> int:
            given = parser.parse_args(["store", *arguments])
            return await ACTIONS[given.what](store, given)

        yield run


async def test_ranges_sizes_and_lists(run: Run, tmp_path: Path, capsysbinary: Out) -> None:
    (tmp_path / "in").write_bytes(b"hello \x00 world")
    (tmp_path / "large").write_bytes(make_value(600_000))
    (tmp_path / "empty").write_bytes(b"")
    for name in ("in", "large", "empty"):
        assert await run("put", name, str(tmp_path / name), "--replicas", "2") == 0
    capsysbinary.readouterr()
    assert await run("get", "in", "--range", "6:3") == 0
    assert capsysbinary.readouterr().out == b"\x00 w"
    assert await run("get", "large", str(tmp_path / "out"), "--range", "100000:400000") == 0
    assert (tmp_path / "out").read_bytes() == make_value(600_000)[100_000:500_000]
    with pytest.raises(CallerError, match="START:LENGTH"):
        await run("get", "in", "--range", "backwards")
    with pytest.raises(BadRange):
        await run("get", "in", "--range", "100:1")
    assert await run("ls", "--json") == 0
    listed = json.loads(capsysbinary.readouterr().out)
    assert [(each["name"], each["bytes"]) for each in listed] == [
        ("empty", 0), ("in", 13), ("large", 600_000),
    ]  # fmt: skip
    assert await run("ls", "la") == 0
    assert capsysbinary.readouterr().out == b"      600000 large\n"
    assert await run("size", "large") == 0
    assert capsysbinary.readouterr().out == b"600000\n"
    assert await run("size", "nothing") == 1
    assert await run("get", "nothing", "--range", "0:1") == 1


async def test_pins_copies_and_removal(run: Run, tmp_path: Path, capsysbinary: Out) -> None:
    (tmp_path / "in").write_bytes(make_value(100_000))
    for name in ("a/1", "a/2", "b"):
        assert await run("put", name, str(tmp_path / "in")) == 0
    assert await run("put", "b", str(tmp_path / "in")) == 1
    assert await run("pin", "b", "--hard") == 0
    assert await run("rm", "b") == 1
    assert await run("unpin", "b") == 0
    assert await run("pin", "b", "--ttl", "5") == 0
    assert await run("pin", "nothing") == 1
    assert await run("replicas", "b", "--add", "node-1") == 0
    assert await run("replicas", "b", "--add", "node-2") == 0
    assert await run("replicas", "b", "--drop", "node-1") == 0
    capsysbinary.readouterr()
    assert await run("replicas", "b", "--json") == 0
    assert json.loads(capsysbinary.readouterr().out)["parts"] == [["node-2"]]
    with pytest.raises(LastCopy):
        await run("replicas", "b", "--drop", "node-2")
    with pytest.raises(UnknownNode):
        await run("replicas", "b", "--add", "node-9")
    assert await run("verify", "--json") == 0
    report = json.loads(capsysbinary.readouterr().out)
    assert report == {"sound": 3, "bytes": 300_000, "gone": 0, "bad": {}}
    assert await run("rm", "a/", "--prefix") == 0
    assert await run("rm", "b") == 0
    assert await run("rm", "b") == 1
    assert await run("verify") == 0


async def test_files_that_can_not_be_read_or_written_are_named(run: Run, tmp_path: Path) -> None:
    for file in (tmp_path / "none", tmp_path):
        with pytest.raises(CallerError, match=str(file)):
            await run("put", "name", str(file))
    (tmp_path / "in").write_bytes(b"hello")
    with pytest.raises(CallerError, match="0"):
        await run("put", "name", str(tmp_path / "in"), "--replicas", "0")
    assert await run("put", "name", str(tmp_path / "in")) == 0
    with pytest.raises(CallerError, match="out"):
        await run("get", "name", str(tmp_path / "no" / "out"))


async def test_a_drain_tells_what_became_of_the_values_in_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = [
        {"drain_left": 20, "drain_moved": 0},
        {"drain_left": 0, "drain_moved": 20},
        {"drain_left": 0, "drain_moved": 20, "drain_over": 1},
    ]
    assert await drain(Draining(told), "n", 5.0, wait=True) == 0  # type: ignore[arg-type]
    assert "20 objects given away, 0 left" in capsys.readouterr().out
    told = [{"drain_left": 3, "drain_moved": 17, "drain_over": 1}]
    assert await drain(Draining(told), "n", 5.0, wait=True) == 1  # type: ignore[arg-type]
    told = [{"drain_left": 0, "drain_moved": 17, "drain_failed": 1, "drain_over": 1}]
    assert await drain(Draining(told), "n", 5.0, wait=True) == 1  # type: ignore[arg-type]
    assert await drain(Draining([]), "n", 5.0, wait=True) == 1  # type: ignore[arg-type]
    assert "not known" in capsys.readouterr().out


class Draining:
    """A node that tells these counters, and then is gone."""

    def __init__(self, told: list[dict[str, int]]) -> None:
        self._told = list(told)

    async def drain(self, node: str, within_s: float) -> bool:
        return True

    async def stats(self, node: str) -> StatsReply:
        if not self._told:
            raise NoResponder(node)
        return StatsReply([], counters=self._told.pop(0))
