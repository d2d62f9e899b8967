"""Two transfer engines that can reach each other, in this process or with the peer in a child."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.messages.segments import RegionGrant
from moonpool.transfer import (
    LocalRegion,
    Op,
    OpenedGrant,
    TlsFiles,
    TransferEngine,
    TransferRequest,
)
from tests.support.certificates import certificates

ROOT = Path(__file__).resolve().parents[2]
IN_VM = "VM_RANK" in os.environ  # in tests/rdma/vm.sh, where two adapters are, and time is slow
ACROSS = ("rdma",) if IN_VM else ("shm", "tcp4", "tcp6", "nics")  # from process to process
WIRINGS = ("rdma",) if IN_VM else ("memory", *ACROSS)
HOSTS = {
    "memory": "127.0.0.1",
    "shm": "127.0.0.1",
    "tcp4": "127.0.0.1",
    "tcp6": "::1",
    "tls4": "127.0.0.1",
    "nics": "127.0.0.1,127.0.0.2",  # tcp over two NICs, as far as an engine can tell
    "rdma": "127.0.0.1",
}
PATIENCE = 10.0 if IN_VM else 1.0  # times what a fast machine is given
Bytes = npt.NDArray[np.uint8]


def kinds(wiring: str) -> tuple[str, ...]:
    return ("tcp",) if wiring in ("tls4", "nics") else (wiring.rstrip("46"),)


def tls_of(wiring: str) -> TlsFiles | None:
    return certificates("mesh") if wiring == "tls4" else None


def adapter(name: str) -> str:
    """Peers of "near" are at the other end of the wire."""
    return "rxe0" if name == "near" else "rxe1"


async def start_engine(
    name: str, wiring: str, folder: Path, *, look_out: bool = True
) -> TransferEngine:
    return await TransferEngine.start(
        name,
        host_id="here",
        run_dir=folder,
        listen_host=HOSTS[wiring],
        transports=kinds(wiring),
        rdma_device=adapter(name) if wiring == "rdma" else "",
        tls=tls_of(wiring),
        look_out=look_out,
    )


@dataclass
class Pair:
    """`near` asks, `far` owns what is asked for."""

    near: TransferEngine
    far: TransferEngine
    wiring: str
    folder: Path


@contextlib.asynccontextmanager
async def make_pair(wiring: str, folder: Path, *, look_out: bool = True) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        near = await start_engine("near", wiring, folder, look_out=look_out)
        stack.push_async_callback(near.close)
        far = await start_engine("far", wiring, folder, look_out=look_out)
        stack.push_async_callback(far.close)
        yield Pair(near, far, wiring, folder)


def array(region: LocalRegion) -> Bytes:
    return np.frombuffer(region.view, np.uint8)


def fill(region: LocalRegion, seed: int) -> Bytes:
    """Random bytes into all of it; returns a copy of them."""
    data = np.random.default_rng(seed).integers(0, 256, region.length, dtype=np.uint8)
    array(region)[:] = data
    return data


def read(
    local: LocalRegion, remote: OpenedGrant, length: int, at: int = 0, remote_at: int = 0
) -> TransferRequest:
    return TransferRequest(Op.READ, local, at, remote, remote_at, length)


def write(
    local: LocalRegion, remote: OpenedGrant, length: int, at: int = 0, remote_at: int = 0
) -> TransferRequest:
    return TransferRequest(Op.WRITE, local, at, remote, remote_at, length)


class Child:
    """A peer process: one engine, one region of `length` bytes, one grant on all of it."""

    def __init__(self, process: asyncio.subprocess.Process, grant: RegionGrant) -> None:
        self._process = process
        self.grant = grant

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, what: str) -> str:
        """One line to the child, one line back."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what.encode() + b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), 10.0 * PATIENCE)
        return line.decode().strip()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []


@contextlib.asynccontextmanager
async def make_child(
    wiring: str,
    folder: Path,
    *,
    name: str = "far",
    length: int = 64 << 20,
    transports: str = "",
    host: str = "",
    within: Sequence[str] = (),
) -> AsyncIterator[Child]:
    """`within`: a command that starts it elsewhere, like `ip netns exec NAME`."""
    settings = {
        "name": name,
        "host": host or HOSTS[wiring],
        "folder": str(folder),
        "length": length,
        "transports": (transports or ",".join(kinds(wiring))).split(","),
        "rdma_device": adapter(name) if wiring == "rdma" else "",
        "tls": asdict(files) if (files := tls_of(wiring)) else None,
    }
    process = await asyncio.create_subprocess_exec(
        *within,
        sys.executable,
        str(ROOT / "tests/contract/transfer_child.py"),
        json.dumps(settings),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "libs"), *_python_path()])},
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 20.0 * PATIENCE)
    child = Child(process, msgspec.json.decode(line, type=RegionGrant))
    try:
        yield child
    finally:
        await child.kill()
        process.stdin.close()  # type: ignore[union-attr]
        process._transport.close()  # type: ignore[attr-defined]  # its pipes, at once
