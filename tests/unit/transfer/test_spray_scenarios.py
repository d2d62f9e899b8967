"""Scenarios of spraying that a reader should study: `scenarios/*.txt`, command and expected.

`REWRITE_SCENARIOS=1 pytest tests/unit/transfer/test_spray_scenarios.py` writes what happens now;
review the diff. Commands: `ways RANK...` (of each way for the memory, lowest first), `put COUNT
MIB`, `arrive WAY [COUNT]` (the oldest), `fail WAY` (all on it), `at SECONDS`.
"""

import os
from pathlib import Path

import pytest

from moonpool.transfer.base import Priority
from moonpool.transfer.spraying import Load, NicLoad, Spray

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
MIB = 1 << 20


class Driver:
    """Answers each command with what was given to which way, and how the ways stand then."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def run(self, command: str) -> list[str]:
        verb, *words = command.split()
        out: list[str] = getattr(self, f"do_{verb}")(*words)
        given: list[str] = []
        while (handed := self.spray.next(self.now_s)) is not None:
            given.append(str(handed.way))
        self.spray.check()
        return [*out, *self.shown(given)]

    def shown(self, given: list[str]) -> list[str]:
        on_ways = " ".join(str(len(way.carried)) for way in self.spray.ways)
        resting = [str(i) for i, way in enumerate(self.spray.ways) if way.rest.now(self.now_s)]
        lines = [f"  given to {' '.join(given)}"] if given else []
        rests = f", resting {' '.join(resting)}" if resting else ""
        return [*lines, f"  on ways {on_ways}, waiting {self.spray.waiting}{rests}"]

    def do_ways(self, *ranks: str) -> list[str]:
        self.ranks = tuple(map(int, ranks))
        self.spray: Spray[int] = Spray([NicLoad(str(i)) for i in range(len(ranks))])
        return []

    def do_put(self, count: str, mib: str) -> list[str]:
        for _ in range(int(count)):
            size = int(float(mib) * MIB)
            self.spray.put(size, size, self.ranks, Priority.FOREGROUND, self.now_s)
        return []

    def do_at(self, seconds: str) -> list[str]:
        self.now_s = float(seconds)
        out = []
        for way in self.spray.overdue(self.now_s):
            loads = self._on(way)
            for load in loads:
                self.spray.taken_back(load, self.now_s)
            out.append(f"  way {way} is silent: {len(loads)} taken back")
        return out

    def do_arrive(self, way: str, count: str = "1") -> list[str]:
        for load in self._on(int(way))[: int(count)]:
            self.spray.arrived(load, self.now_s)
        return []

    def do_fail(self, way: str) -> list[str]:
        loads = self._on(int(way))
        lost = sum(not self.spray.failed(load, self.now_s) for load in loads)
        if not self.spray.hopeless(self.now_s):
            return [f"  {lost} given up"] if lost else []
        return [f"  no way works: {lost + len(self.spray.drain())} given up"]

    def _on(self, way: int) -> list[Load[int]]:
        return list(self.spray.ways[way].carried)


def run_file(path: Path) -> tuple[str, str]:
    """(the file, the file as it would be with what happens now)."""
    text, out, driver = path.read_text(), [], Driver()
    for line in text.splitlines():
        if line.startswith("$ "):
            out += [line, *driver.run(line[2:])]
        elif not line.startswith("  "):
            out.append(line)
    return text, "\n".join(out) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    found, expected = run_file(path)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(expected)
    else:
        assert found == expected


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 4
