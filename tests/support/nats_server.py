"""A real NATS server for tests, on a free port, from the package that the project installs."""

import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

START_MAX_S = 15.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_nats_server() -> str:
    """The path of the binary. RuntimeError when the package is not installed."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    if found is None:
        raise RuntimeError("nats-server is missing: run `make setup`")
    return found


class NatsServer:
    """`with NatsServer() as server:` runs it with JetStream; it can be stopped and started again
    on the same port and data."""

    def __init__(self, *, jetstream: bool = True, config: str = "") -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="moonpool-nats-"))
        self._jetstream = jetstream
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once it takes connections. RuntimeError with its log when it does not."""
        config = self._folder / "server.conf"
        config.write_text(self._config, encoding="utf-8")
        command = [find_nats_server(), "-c", str(config), "-a", "127.0.0.1", "-p", str(self.port)]
        if self._jetstream:
            command += ["-js", "-sd", str(self._folder / "data")]
        log = self._folder / "server.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        end = time.monotonic() + START_MAX_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"nats-server did not start: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=5.0)

    def kill(self) -> None:
        """As by a crash: nothing is said to clients."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=5.0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, it is there and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as probe:
                return probe.recv(4) == b"INFO"
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
