"""One process of a local mesh: started so that it can't outlive us, watched, stopped."""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """A process with a log file, in a process group of its own.

    The kernel kills it when the thread that started it ends, however it ends, so start children
    from a thread that lives as long as the mesh: the main one.
    """

    def __init__(
        self, name: str, role: str, command: Sequence[str], env: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.role = role
        self.command = list(command)
        self.env = dict(env)
        self.log = log
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int:
        """Raises RuntimeError before the first start."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and not self._ended.is_set()

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode if self._process is not None else None

    def start(self) -> None:
        """Starts it once more; its output is appended to the log. Not while it runs."""
        assert not self.running
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        self._ended = asyncio.Event()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.starts += 1
        self._watch(self._process, self._ended)

    def _watch(self, process: "subprocess.Popen[bytes]", ended: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        watch_fd = os.pidfd_open(process.pid)

        def on_end() -> None:
            loop.remove_reader(watch_fd)
            os.close(watch_fd)
            process.wait()
            ended.set()

        loop.add_reader(watch_fd, on_end)

    def signal(self, number: int) -> None:
        """To the process alone; nothing happens when it has ended."""
        if self.running:
            assert self._process is not None
            self._process.send_signal(number)

    async def wait(self, timeout_s: float | None = None) -> int:
        """Its return code. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and after `grace_s` SIGKILL, to it and all that it started. Idempotent."""
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a paused process would not hear it
        try:
            await self.wait(grace_s)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.wait(10.0)
        self._kill_group()

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def log_tail(self, lines: int = 12) -> str:
        """The end of its log, for an error's text."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])
