"""`moonpool up` and what talks to it, as a person uses them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.cli.mesh import MeshRecord, StateFolder

pytestmark = pytest.mark.slow

SMALL = {"MOONPOOL_KV_POOL_BYTES": str(256 << 20), "MOONPOOL_DRAM_BYTES": str(128 << 20)}
UP = ("up", "--colocated", "1", "--port", "0", "--nats-port", "0")


@dataclass
class Ended:
    code: int
    out: str
    err: str


@dataclass
class Shell:
    """A person at a terminal, with a state folder of their own."""

    state: Path

    def command(self, *arguments: str) -> list[str]:
        verb, *rest = arguments
        return [sys.executable, "-m", "services.cli", verb, "--state-dir", str(self.state), *rest]

    def run(self, *arguments: str, typed: str = "", timeout_s: float = 120.0) -> Ended:
        done = subprocess.run(
            self.command(*arguments),
            input=typed,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=os.environ | SMALL,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | SMALL,
        )

    @property
    def record(self) -> MeshRecord:
        record = StateFolder(self.state).read()
        assert record is not None
        return record


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """With a mesh that runs in the background."""
    shell = Shell(tmp_path_factory.mktemp("state"))
    ended = shell.run(*UP, "--detach", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["url"] == shell.record.url
    yield shell
    shell.run("down")


def wait_until(condition: Any, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.05)


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def listening(url: str) -> bool:
    host, port = url.split("//")[1].split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def assert_nothing_left(state: Path, record: MeshRecord, run_dir: Path) -> None:
    wait_until(lambda: not alive([record.pid, *record.pids.values()]))
    assert not [url for url in (record.url, record.nats_url, record.s3_url) if listening(url)]
    wait_until(lambda: not run_dir.exists())
    wait_until(lambda: [p.name for p in state.iterdir()] == ["logs"])


def run_dir_of(record: MeshRecord) -> Path:
    environ = psutil.Process(record.pids["gateway-1"]).environ()
    return Path(environ["MOONPOOL_RUN_DIR"])


def test_status_lists_every_service_as_ready(shell: Shell) -> None:
    ended = shell.run("status", "--json")
    assert ended.code == 0, ended.err
    rows = {row["id"]: row for row in json.loads(ended.out)["services"]}
    assert set(rows) == {"gateway-1", "conductor-1", "colocated-1", "store-1"}
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert "colocated-1" in shell.run("status").out


def test_models_names_the_default_model(shell: Shell) -> None:
    assert shell.run("models").out.split() == [shell.record.model]


def test_a_chat_remembers_its_turns_and_reuses_their_cache(shell: Shell) -> None:
    text = "Tell me a story about a crow, a pitcher and some pebbles in at least ten sentences."
    ended = shell.run(
        *("chat", "--json", "--temperature", "0", "--max-tokens", "96"),
        typed=f"{text}\nAnd then?\n/reset\nHi\n",
    )
    assert ended.code == 0, ended.err
    first, second, fresh = (json.loads(line) for line in ended.out.splitlines())
    in_full_blocks = (first["prompt_tokens"] + first["completion_tokens"] - 1) // 64 * 64
    assert second["cached_tokens"] >= in_full_blocks > 0
    assert fresh["prompt_tokens"] < first["prompt_tokens"]


def test_a_wrong_model_is_one_clear_line(shell: Shell) -> None:
    ended = shell.run("chat", "--model", "no-such-model", typed="Hi\n")
    assert ended.code == 1
    assert "no-such-model" in ended.err
    assert "Traceback" not in ended.err


def test_tail_shows_requests_and_metrics_as_they_happen(shell: Shell) -> None:
    audit = shell.start("tail", "audit", "--count", "1", "--json")
    metrics = shell.start("tail", "metrics", "--count", "4")
    deadline = time.monotonic() + 60.0
    while audit.poll() is None and time.monotonic() < deadline:
        shell.run("chat", "--max-tokens", "4", typed="Hi\n")
    event = json.loads(audit.communicate(timeout=10)[0])
    assert event["outcome"] == "ok"
    assert event["completion_tokens"] == 4
    assert "-1 " in metrics.communicate(timeout=10)[0]


def test_a_second_up_is_refused_with_the_address_of_the_first(shell: Shell) -> None:
    ended = shell.run(*UP)
    assert ended.code == 1
    assert shell.record.url in ended.err
    assert "moonpool down" in ended.err
    assert "stopped" not in ended.err


def test_a_service_that_dies_is_started_again(shell: Shell) -> None:
    before = shell.record.pids["store-1"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: shell.record.pids["store-1"] != before)
    wait_until(lambda: shell.run("status").code == 0)
    log = (shell.state / "logs" / "launcher.log").read_text()
    assert log.count("store-1 ended with -9; starting it again") == 1


def test_down_leaves_nothing_but_the_logs(shell: Shell) -> None:
    record, run_dir = shell.record, run_dir_of(shell.record)
    ended = shell.run("down")
    assert ended.code == 0, ended.err
    assert_nothing_left(shell.state, record, run_dir)
    assert "Traceback" not in "".join(p.read_text() for p in shell.state.rglob("*.log"))


def test_a_launcher_that_is_killed_leaves_nothing_but_the_logs(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "state")
    assert shell.run(*UP, "--detach").code == 0
    record, run_dir = shell.record, run_dir_of(shell.record)
    os.kill(record.pid, signal.SIGKILL)
    assert_nothing_left(shell.state, record, run_dir)


def test_ctrl_c_while_it_starts_leaves_nothing_but_the_logs(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "state")
    with shell.start(*UP) as starting:
        wait_until(lambda: "colocated-1" in getattr(_read(shell), "pids", {}), 60.0)
        record, run_dir = shell.record, run_dir_of(shell.record)
        starting.send_signal(signal.SIGINT)
        assert starting.wait(30) == 130
    assert_nothing_left(shell.state, record, run_dir)


def _read(shell: Shell) -> MeshRecord | None:
    return StateFolder(shell.state).read()


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "state")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = shell.run("up", "--port", port)
    assert ended.code == 1
    assert f"port {port} is taken by" in ended.err
    assert "--port" in ended.err


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    ended = Shell(tmp_path / "state").run(*UP, "--model", str(tmp_path / "nowhere"))
    assert ended.code == 1
    assert "nowhere" in ended.err
    assert "Traceback" not in ended.err
