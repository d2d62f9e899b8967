"""`moonpool store` over a real node."""

import json
from pathlib import Path

import pytest

from moonpool.messages.store import StatsReply, TierStats
from services.cli import main
from services.cli.verbs.store import as_table
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess


def test_a_value_goes_in_and_comes_out(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "in").write_bytes(b"hello \x00 world")
    with (
        NatsServer() as server,
        NodeProcess(server.url, "node-1", dram_bytes=16 << 20),
    ):

        def store(*arguments: str) -> int:
            return main(["store", *arguments, "--nats", server.url])

        assert store("put", "greeting", str(tmp_path / "in")) == 0
        assert store("put", "greeting", str(tmp_path / "in")) == 1
        assert store("put", "greeting", str(tmp_path / "in"), "--replace") == 0
        capsysbinary.readouterr()
        assert store("get", "greeting") == 0
        assert capsysbinary.readouterr().out == b"hello \x00 world"
        assert store("get", "greeting", str(tmp_path / "out")) == 0
        assert (tmp_path / "out").read_bytes() == b"hello \x00 world"
        assert store("get", "nothing") == 1
        capsysbinary.readouterr()
        assert store("stats", "--json") == 0
        told = json.loads(capsysbinary.readouterr().out)
        assert told["node-1"]["tiers"][0]["tier"] == "dram"
        assert store("drain", "node-1") == 1  # nobody was there to take what was used
        assert b"0 objects given away, 1 left" in capsysbinary.readouterr().out
        assert store("get") == 1


def test_the_table_shows_what_is_wrong_with_a_tier() -> None:
    full = TierStats("dram", 3, 4096, 1 << 20, fragmentation=0.375)
    tiers = [full, TierStats("oss", 0, 0, 1 << 30, 0, "no bucket")]
    lines = as_table({"store-1": StatsReply(tiers)}).splitlines()
    assert len(lines) == 3
    assert lines[0].split()[-3:] == ["FRAG", "%", "HEALTH"]
    assert lines[1].split()[-2:] == ["37.5", "ok"]
    assert lines[2].endswith("no bucket")
