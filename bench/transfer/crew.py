"""The processes of all sides. Only the pair whose turn it is runs: all others are stopped, since
some of them spin even when they have nothing to do."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.rivals import MOONCAKE, NIXL, Rivals, Unavailable, python_with
from bench.transfer.shapes import Shape

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
ANSWER_S = 30.0
QUIET = {"GLOG_minloglevel": "3", "NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error"}
LOCAL = {"MC_TCP_BIND_ADDRESS": "127.0.0.1"}  # Mooncake would take the outer address


@dataclass(frozen=True, slots=True)
class Side:
    """One competitor: its module, and where it runs."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    rivals: Rivals | None = None  # whose environment; our own if None
    alone: bool = False  # one process, no server


SIDES = (
    Side("memcpy", "memcpy", alone=True),
    Side("socket", "plain_socket"),
    Side("shm", "ours", ("shm",)),
    Side("tcp", "ours", ("tcp",)),
    Side("mooncake", "mooncake_engine", rivals=MOONCAKE),
    Side("nixl_shm", "nixl_agent", ("shm",), rivals=NIXL),
    Side("nixl_tcp", "nixl_agent", ("tcp",), rivals=NIXL),
    Side("gloo", "gloo"),
)


class Failed(Exception):
    """A side cannot go on; the text says why."""


class Process:
    def __init__(self, python: str, side: Side, role: str, folder: str) -> None:
        self._log = os.memfd_create("stderr")
        self._process = subprocess.Popen(
            [python, "-m", f"bench.transfer.{side.module}", *side.arguments, role, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **QUIET, **LOCAL, "PYTHONPATH": f"{ROOT}:{ROOT / 'libs'}"},
            cwd=ROOT,
            text=True,
        )

    def say(self, question: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `hear` tells why it went
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Raises Failed."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            raise Failed(f"no answer within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _last_words(self) -> str:
        said = os.pread(self._log, 1 << 20, 0).decode(errors="replace").strip()
        return said.splitlines()[-1][:300] if said else "without a word"

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        os.close(self._log)


@dataclass
class Crew:
    """All sides that can run, and why the others cannot."""

    folder: str  # for sockets, gone afterwards
    pairs: dict[str, list[Process]] = field(default_factory=dict)  # the client is the last
    unavailable: dict[str, str] = field(default_factory=dict)

    def add(self, side: Side) -> None:
        python = python_with(side.rivals) if side.rivals else Path(sys.executable)
        if isinstance(python, Unavailable):
            self.unavailable[side.name] = python.why
            return
        processes: list[Process] = []
        try:
            self._start(side, str(python), processes)
        except Failed as failure:
            self.unavailable[side.name] = str(failure)
            for process in processes:
                process.end()
            return
        self.pairs[side.name] = processes
        self._signal(side.name, signal.SIGSTOP)

    def _start(self, side: Side, python: str, processes: list[Process]) -> None:
        told: dict[str, Any] = {}
        if not side.alone:
            processes.append(Process(python, side, "server", self.folder))
            told = processes[-1].hear(START_S)
        processes.append(Process(python, side, "client", self.folder))
        if not side.alone:
            processes[-1].say(told)
        checked = processes[-1].hear(START_S)
        if not (checked["read_ok"] and checked["write_ok"]):
            raise Failed(f"its bytes are wrong: {checked}")

    def ask(self, name: str, op: str, shape: Shape, seconds: float) -> dict[str, Any] | None:
        """One measurement. None when the side is gone, which `unavailable` then explains."""
        if name not in self.pairs:
            return None
        self._signal(name, signal.SIGCONT)
        client = self.pairs[name][-1]
        client.say({"op": op, "size": shape.size, "count": shape.count, "seconds": seconds})
        try:
            return client.hear(ANSWER_S)
        except Failed as failure:
            self.unavailable[name] = f"{op} of {shape}: {failure}"
            self._end(name)
            return None
        finally:
            self._signal(name, signal.SIGSTOP)

    def _signal(self, name: str, number: signal.Signals) -> None:
        for process in self.pairs.get(name, ()):
            process.signal(number)

    def _end(self, name: str) -> None:
        for process in self.pairs.pop(name):
            process.end()

    def end(self) -> None:
        for name in list(self.pairs):
            self._end(name)


@contextlib.contextmanager
def running(sides: Sequence[Side]) -> Iterator[Crew]:
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as folder:
        crew = Crew(folder)
        try:
            for side in sides:
                crew.add(side)
            yield crew
        finally:
            crew.end()
