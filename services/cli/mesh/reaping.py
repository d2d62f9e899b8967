"""The launcher's side of the reaper: tells it what to clean up should the launcher be killed."""

import contextlib
import subprocess
import sys
from pathlib import Path


class Reaper:
    """One small process per mesh, in a session of its own: no signal to the launcher reaches it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def started(self, pid: int) -> None:
        self._tell(f"+{pid}")

    def ended(self, pid: int) -> None:
        self._tell(f"-{pid}")

    def remove_at_death(self, path: Path) -> None:
        self._tell(f"path {path}")

    def dismiss(self) -> None:
        """Nothing is left to clean up: ends it. Idempotent."""
        self._tell("done")
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, line: str) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            stdin.write(line + "\n")
            stdin.flush()
