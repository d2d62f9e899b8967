"""`moonpool quota` over a real server, and what a node then does."""

import argparse
import json

import pytest

from services.cli import main
from services.cli.verbs.quota import read_bytes
from tests.support.nats_server import NatsServer


def test_quotas_are_set_changed_shown_and_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    with NatsServer() as server:

        def quota(*arguments: str) -> int:
            return main(["quota", *arguments, "--nats", server.url])

        assert quota("get", "acme") == 1
        assert quota("set", "acme", "--dram", "64MiB", "--over", "evict") == 0
        assert quota("set", "acme", "--hard", "1000") == 0
        assert quota("set", "emu", "--nvme", "2GiB") == 0
        capsys.readouterr()
        assert quota("list", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["acme"] == {"dram_bytes": 64 << 20, "hard_bytes": 1000, "over": "evict"}
        assert told["emu"]["nvme_bytes"] == 2 << 30
        assert quota("clear", "acme") == 0
        capsys.readouterr()
        assert quota("list") == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["emu", "-", "2048.0", "-"]
        assert quota("set") == 1
        assert quota("set", "no such tenant!", "--dram", "1") == 1


@pytest.mark.parametrize(("text", "size"), [("17", 17), ("8GiB", 8 << 30), ("3mib", 3 << 20)])
def test_sizes_are_read_with_their_unit(text: str, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "8GB", "-1", "1.5GiB", "many"])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read_bytes(text)
