"""A whole mesh as processes on this machine: what `moonpool up`, tests and benchmarks start."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from services.cli.mesh import model, preflight
from services.cli.mesh.build import Builder, Sites
from services.cli.mesh.child import Child
from services.cli.mesh.errors import ServiceFailed
from services.cli.mesh.reaping import Reaper
from services.cli.mesh.shape import DEFAULT_MODEL, MeshShape
from services.cli.mesh.state import MeshRecord, StateFolder
from services.cli.mesh.watch import RegistryWatch

READY_WITHIN_S = 180.0
STOP_GRACE_S = 8.0
# Whoever takes work in stops first, what they all stand on stops last.
STOP_ORDER = (("gateway",), ("prefill", "decode", "colocated"), ("store", "conductor"), ("server",))


def _silent(line: str) -> None:
    return


class LocalMesh:
    """Starts on `async with`, ends with it; nothing it started survives it, however it ends.

        async with LocalMesh(prefill=2, decode=2, store=2) as mesh:
            httpx.get(f"{mesh.url}/v1/models")
            await mesh.kill("decode-1")
            await mesh.restart("decode-1")

    Services are named `role-N` from 1; the servers are `nats` and `s3`. Use it from the main
    thread: the kernel ends the processes with the thread that started them. `env` holds settings
    for all services, `service_env` for one of them by its name. `MOONPOOL_*` variables of our own
    environment are not passed on. Raises MeshRefused, MachineTooSmall or ServiceFailed.
    """

    def __init__(
        self,
        *,
        prefill: int = 1,
        decode: int = 1,
        store: int = 1,
        colocated: int = 0,
        gateway: int = 1,
        conductor: int = 1,
        model: str = DEFAULT_MODEL,
        dtype: str = "auto",
        port: int = 0,
        nats_port: int = 0,
        s3: bool = False,
        env: Mapping[str, str] | None = None,
        service_env: Mapping[str, Mapping[str, str]] | None = None,
        state_dir: Path | None = None,
        progress: Callable[[str], None] = _silent,
        ready_within_s: float = READY_WITHIN_S,
    ) -> None:
        self.shape = MeshShape(prefill, decode, store, colocated, gateway, conductor, model, dtype)
        self.processes: dict[str, Child] = {}
        self._sites = Sites(port=port, nats_port=nats_port, s3=s3)
        self._env = dict(env or {})
        self._service_env = dict(service_env or {})
        self._own_state = state_dir is None
        self._state = StateFolder(state_dir or Path(tempfile.mkdtemp(prefix="moonpool-state-")))
        self._progress = progress
        self._ready_within_s = ready_within_s
        self._run_dir: Path | None = None
        self._reaper: Reaper | None = None
        self._watch: RegistryWatch | None = None
        self._ended: asyncio.Queue[Child] = asyncio.Queue(maxsize=256)
        self._watchers: set[asyncio.Task[None]] = set()
        self._expected: set[str] = set()  # names whose end is wanted

    # Where it is

    @property
    def url(self) -> str:
        """Of the first gateway, without a path."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        return self._sites.api_urls

    @property
    def nats_url(self) -> str:
        return self._sites.nats_url

    @property
    def s3_url(self) -> str:
        return self._sites.s3_url

    @property
    def model_name(self) -> str:
        """As requests name it."""
        return (self._watch.model_name() if self._watch else "") or self.shape.model

    @property
    def logs_dir(self) -> Path:
        return self._state.logs

    def pid(self, name: str) -> int:
        return self.processes[name].pid

    def log(self, name: str) -> str:
        """All that a process wrote so far."""
        return self.processes[name].log.read_text(errors="replace")

    def stats(self) -> dict[str, int]:
        return {
            "processes": len(self.processes),
            "running": sum(c.running for c in self.processes.values()),
            "starts": sum(c.starts for c in self.processes.values()),
            **(self._watch.stats() if self._watch else {}),
        }

    # Life

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _start(self) -> None:
        self.shape.check()
        self._state.acquire()
        for port in (self._sites.port, self._sites.nats_port):
            preflight.check_port(port)
        preflight.check_disk(self._state.root)
        self._sites.choose(self.shape.gateway)
        self.record(ready=False)
        folder = await model.fetch_model(self.shape.model, self._progress)
        preflight.check_memory(self.shape, self._env, preflight.weights_bytes(folder))
        self._reaper = Reaper()
        self._run_dir = Path(tempfile.mkdtemp(prefix="moonpool-run-"))
        whole = [self._state.root] if self._own_state else self._state.passing()
        for path in (self._run_dir, *whole):
            self._reaper.remove_at_death(path)
        builder = Builder(
            self.shape, self._sites, self._state, self._run_dir, self._env, self._service_env
        )
        for child in builder.servers():
            self._launch(child)
        self._progress(f"nats-server on {self.nats_url}")
        self._watch = RegistryWatch(self.nats_url, self._env.get("MOONPOOL_MESH", "mp"))
        await self._watch.open()
        for child in builder.services():
            self._launch(child)
        self.record(ready=False)
        await self.wait_ready()
        self.record(ready=True)

    def _launch(self, child: Child) -> None:
        self.processes[child.name] = child
        self._start_child(child)

    def _start_child(self, child: Child) -> None:
        child.start()
        assert self._reaper is not None
        self._reaper.started(child.pid)
        self._expected.discard(child.name)
        task = asyncio.get_running_loop().create_task(self._until_end(child, self._reaper))
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def _until_end(self, child: Child, reaper: Reaper) -> None:
        await child.wait()
        reaper.ended(child.pid)
        if child.name not in self._expected:
            with contextlib.suppress(asyncio.QueueFull):
                self._ended.put_nowait(child)

    def record(self, *, ready: bool) -> None:
        """Writes mesh.json for the other commands."""
        pids = {name: child.pid for name, child in self.processes.items() if child.running}
        self._state.write(
            MeshRecord(
                pid=os.getpid(),
                url=self.url,
                nats_url=self.nats_url,
                mesh=self._env.get("MOONPOOL_MESH", "mp"),
                model=self.model_name,
                logs=str(self.logs_dir),
                ready=ready,
                s3_url=self.s3_url,
                s3_access_key=self._sites.s3_access_key,
                s3_secret_key=self._sites.s3_secret_key,
                pids=pids,
            )
        )

    async def wait_ready(self) -> None:
        """Until every service is ready and every gateway can answer. Raises ServiceFailed."""
        names = [n for n, _ in self.shape.names() if self.processes[n].running]
        try:
            async with asyncio.timeout(self._ready_within_s):
                await self._wait_heartbeats(names)
                await self._wait_gateways()
        except TimeoutError:
            late = self._watch.not_ready(names) if self._watch else names
            tail = self.processes[late[0]].log_tail() if late else ""
            raise ServiceFailed(
                f"not ready within {self._ready_within_s:.0f} s: "
                f"{', '.join(late) or 'the gateway (/ready)'}\n{tail}"
            ) from None

    async def _wait_heartbeats(self, names: list[str]) -> None:
        assert self._watch is not None
        waiting = set(names)
        while waiting:
            still = set(self._watch.not_ready(names))
            for name in sorted(waiting - still):
                self._progress(f"{name} ready")
            waiting = still
            self._raise_if_ended(names)
            if waiting:
                await self._watch.change(0.2)

    async def _wait_gateways(self) -> None:
        async with httpx.AsyncClient(timeout=5.0) as client:
            for url in self.urls:
                while True:
                    self._raise_if_ended([n for n, _ in self.shape.names()])
                    with contextlib.suppress(httpx.HTTPError):
                        if (await client.get(f"{url}/ready")).status_code == 200:
                            break
                    await asyncio.sleep(0.05)

    def _raise_if_ended(self, names: list[str]) -> None:
        for name in [*names, "nats"]:
            child = self.processes[name]
            if not child.running and name not in self._expected:
                raise ServiceFailed(
                    f"{name} ended with {child.returncode} while starting; "
                    f"its log ({child.log}) says:\n{child.log_tail()}"
                )

    async def ended(self) -> Child:
        """The next process that ended although nobody asked for it."""
        return await self._ended.get()

    # What tests do to it

    async def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal that ends it, and returns when it has ended."""
        self._expected.add(name)
        self.processes[name].signal(number)
        await self.processes[name].wait(20.0)

    def pause(self, name: str) -> None:
        self.processes[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.processes[name].signal(signal.SIGCONT)

    async def restart(self, name: str, *, wait_ready: bool = True) -> None:
        """Ends it if it runs, starts it again, and waits until its new life is ready."""
        child = self.processes[name]
        self._expected.add(name)
        await child.stop(STOP_GRACE_S)
        epoch_before = self._watch.epoch(name) if self._watch else ""
        self._start_child(child)
        if not wait_ready or child.role == "server":
            return
        assert self._watch is not None
        async with asyncio.timeout(self._ready_within_s):
            while self._watch.not_ready([name]) or self._watch.epoch(name) == epoch_before:
                self._raise_if_ended([name])
                await self._watch.change(0.2)

    def start_again(self, child: Child) -> None:
        """Starts a process that ended, at once and without waiting for it."""
        self._start_child(child)

    async def stop(self) -> None:
        """Ends every process and removes every file but the logs. Idempotent."""
        self._expected.update(self.processes)
        for roles in STOP_ORDER:
            ending = [c for c in self.processes.values() if c.role in roles]
            async with asyncio.TaskGroup() as group:
                for child in ending:
                    group.create_task(child.stop(STOP_GRACE_S))
        for task in list(self._watchers):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._watch is not None:
            await self._watch.close()
            self._watch = None
        if self._run_dir is not None:
            shutil.rmtree(self._run_dir, ignore_errors=True)
        self._state.release()
        if self._own_state:
            shutil.rmtree(self._state.root, ignore_errors=True)
        if self._reaper is not None:
            self._reaper.dismiss()
            self._reaper = None
