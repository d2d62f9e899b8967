"""Asks the rival's process, which waits on its pipe while we measure ourselves."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.rivals import DYNAMO, Unavailable, python_with

_SCRIPT = Path(__file__).with_name("rival_radix.py")


class Rival:
    """Its process, on the core that we are pinned to. Raises OSError when it cannot start."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, do: str, **order: object) -> dict[str, Any]:
        """Raises RuntimeError when it died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the rival ended with status {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(10)


def start_rival() -> Rival | str:
    """The rival, or why it cannot run here."""
    python = python_with(DYNAMO)
    return python.why if isinstance(python, Unavailable) else Rival(python)
