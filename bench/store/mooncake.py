"""Mooncake Store beside us: its master, a process that holds a segment, and a client process."""

import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from bench.rivals import MOONCAKE, Unavailable, python_with
from services.cli.mesh.ports import free_ports

SEGMENT_BYTES = 768 << 20
ANSWER_S = 60.0
START_S = 30.0
LINE_MAX_BYTES = 16 << 20
_WORKER = Path(__file__).with_name("mooncake_worker.py")


class RivalFailed(Exception):
    """It could be installed, but not run."""


class MooncakeClient:
    """One client process; a command at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, verb: str, *given: object) -> list[float]:
        """Seconds per operation. Raises RivalFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, *given]).encode() + b"\n")
        answer: list[float] = json.loads(await _line(self._process))
        return answer

    async def put(self, prefix: str, size_bytes: int, count: int) -> list[float]:
        return await self.ask("put", prefix, size_bytes, count)

    async def get(self, prefix: str, size_bytes: int, count: int) -> list[float]:
        return await self.ask("get", prefix, size_bytes, count)

    async def batch_get(self, prefix: str, size_bytes: int, count: int, batch: int) -> list[float]:
        return await self.ask("batch_get", prefix, size_bytes, count, batch)

    async def exists(self, prefix: str, count: int) -> list[float]:
        return await self.ask("exists", prefix, count)

    async def clear(self) -> None:
        await self.ask("clear")


def mooncake_python() -> Path:
    """Raises RivalFailed with the reason."""
    python = python_with(MOONCAKE)
    if isinstance(python, Unavailable):
        raise RivalFailed(python.why)
    return python


@asynccontextmanager
async def mooncake(*, local: bool) -> AsyncIterator[MooncakeClient]:
    """`local`: the client holds the segment itself; otherwise another process does, and every byte
    goes through tcp. Raises RivalFailed, with what the rival said last."""
    python = mooncake_python()
    with tempfile.TemporaryFile() as log:
        try:
            async with contextlib.AsyncExitStack() as stack:
                yield await _start(stack, python, log, local=local)
        except RivalFailed as error:
            log.seek(0)
            lines = log.read()[-4000:].decode(errors="replace").splitlines()
            raise RivalFailed(" | ".join([str(error), *lines[-3:]])[:1000]) from error


async def _start(
    stack: contextlib.AsyncExitStack, python: Path, log: IO[bytes], *, local: bool
) -> MooncakeClient:
    rpc, http, metrics, holder, client = free_ports(5)
    flags = [
        f"-rpc_port={rpc}",
        "-rpc_address=127.0.0.1",
        "-enable_http_metadata_server=true",
        "-http_metadata_server_host=127.0.0.1",
        f"-http_metadata_server_port={http}",
        "-metrics_host=127.0.0.1",
        f"-metrics_port={metrics}",
    ]

    async def spawn(*command: str, answers: bool) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=_environment(),
            stdin=subprocess.PIPE if answers else subprocess.DEVNULL,
            stdout=subprocess.PIPE if answers else log,
            stderr=log,
            limit=LINE_MAX_BYTES,
        )
        stack.push_async_callback(_end, process)
        return process

    async def work(kind: str, port: int, segment_bytes: int) -> asyncio.subprocess.Process:
        where = [f"127.0.0.1:{port}", f"http://127.0.0.1:{http}/metadata", f"127.0.0.1:{rpc}"]
        command = [str(python), "-I", str(_WORKER), kind, *where, str(segment_bytes)]
        process = await spawn(*command, answers=True)
        await _line(process)
        return process

    program = next(python.parent.parent.glob("lib/*/site-packages/mooncake/mooncake_master"))
    master = await spawn(str(program), *flags, answers=False)
    for port in (rpc, http):
        await _wait_port(port, master)
    if not local:
        await work("hold", holder, SEGMENT_BYTES)
    return MooncakeClient(await work("client", client, SEGMENT_BYTES if local else 0))


def _environment() -> dict[str, str]:
    """Loopback only, and quiet."""
    env = {**os.environ, "MC_TCP_BIND_ADDRESS": "127.0.0.1", "GLOG_minloglevel": "2"}
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        env.pop(name, None)
    return env


async def _line(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(ANSWER_S):
            line = await process.stdout.readline()
    except TimeoutError:
        raise RivalFailed(f"mooncake does not answer within {ANSWER_S:g} s") from None
    if not line:
        raise RivalFailed(f"a process of mooncake ended with {await process.wait()}")
    return line


async def _wait_port(port: int, server: asyncio.subprocess.Process) -> None:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + START_S
    while loop.time() < ends_s and server.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RivalFailed(f"mooncake_master does not listen on {port}: {server.returncode}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """None of them ends by itself in reasonable time."""
    if process.returncode is None:
        process.kill()
    await process.wait()
