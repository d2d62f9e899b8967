"""Store nodes for tests: one inside this process on an in-memory bus, one as a real process."""

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.client import StoreClient
from moonpool.clock import Clock, RealClock
from moonpool.messages import Subjects
from moonpool.runtime import Members, new_context
from moonpool.settings import StoreSettings
from moonpool.transfer import TransferEngine
from services.store.node import StoreNode
from services.store.shell import running_node

ROOT = Path(__file__).parents[2]
EXIT_MAX_S = 20.0


@asynccontextmanager
async def memory_node(
    broker: MemoryBroker, id: str = "node-1", clock: Clock | None = None, **settings: object
) -> AsyncIterator[StoreNode]:
    """A node that serves on the broker while inside."""
    bus = MemoryBus(broker)
    with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
        given = StoreSettings(id=id, run_dir=folder, **settings)
        try:
            async with running_node(new_context("store", given, bus, clock=clock)) as node:
                yield node
        finally:
            await bus.close()


@asynccontextmanager
async def memory_client(
    broker: MemoryBroker, *nodes: str, tenant: str = "public", **given: Any
) -> AsyncIterator[StoreClient]:
    """A client on the broker, with its own transfer engine. `given`: as for StoreClient."""
    bus, subjects = MemoryBus(broker), Subjects("mp")
    with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
        transfer = await TransferEngine.start("client", host_id="here", run_dir=folder)
        try:
            async with Members(bus, subjects, RealClock()) as members:
                client = StoreClient(
                    bus, transfer, members, subjects, tenant, nodes, host_id="here", **given
                )
                await client.wait_for_nodes(5.0)
                yield client
        finally:
            await transfer.close()
            await bus.close()


class NodeProcess:
    """`python -m services.store`, as operators run it."""

    def __init__(self, nats_url: str, id: str, **settings: object) -> None:
        self.id = id
        self._folder = tempfile.TemporaryDirectory(prefix="moonpool-")
        given = {"nats_url": nats_url, "id": id, "run_dir": self._folder.name, **settings}
        env = {k: v for k, v in os.environ.items() if not k.startswith("MOONPOOL_")}
        env |= {f"MOONPOOL_{name.upper()}": str(value) for name, value in given.items()}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "libs")])
        self.log = Path(self._folder.name) / "node.log"
        with self.log.open("wb") as out:
            command = [sys.executable, "-m", "services.store"]
            self.process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=out)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> int:
        """Asks it to go; its exit status. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(EXIT_MAX_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(EXIT_MAX_S)

    def kill(self) -> None:
        """As by a crash."""
        self.process.kill()
        self.process.wait(EXIT_MAX_S)

    def lines(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(encoding="utf-8")


@contextmanager
def segment_of(pid: int, size_bytes: int) -> Iterator[mmap.mmap]:
    """The node's shared memory itself, so that a test can damage it."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            is_ours = "memfd:moonpool" in os.readlink(link) and link.stat().st_size == size_bytes
        except OSError:
            continue  # closed meanwhile
        if is_ours:
            with link.open("r+b") as file, mmap.mmap(file.fileno(), size_bytes) as view:
                yield view
                return
    raise AssertionError(f"process {pid} has no segment of {size_bytes} bytes")
