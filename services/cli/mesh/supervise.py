"""Starts again what ended on its own, with back-off and one line per event."""

import asyncio
from collections.abc import Callable

from services.cli.mesh.child import Child
from services.cli.mesh.local import LocalMesh

BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STEADY_AFTER_S = 60.0  # a life this long makes the next failure the first again


class Lives:
    """How often each process failed in a row."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._started_s: dict[str, float] = {}

    def delay_s(self, name: str, now_s: float) -> float:
        if now_s - self._started_s.get(name, 0.0) > STEADY_AFTER_S:
            self._failures[name] = 0
        failures = self._failures.get(name, 0)
        self._failures[name] = failures + 1
        return BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)]

    def started(self, name: str, now_s: float) -> None:
        self._started_s[name] = now_s


async def supervise(mesh: LocalMesh, say: Callable[[str], None]) -> None:
    """Until cancelled. Processes wait for their turn independently of one another."""
    lives = Lives()
    async with asyncio.TaskGroup() as group:
        while True:
            child = await mesh.ended()
            group.create_task(_revive(mesh, child, lives, say))


async def _revive(mesh: LocalMesh, child: Child, lives: Lives, say: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    delay_s = lives.delay_s(child.name, loop.time())
    say(f"{child.name} ended with {child.returncode}; starting it again in {delay_s:g} s")
    await asyncio.sleep(delay_s)
    lives.started(child.name, loop.time())
    mesh.start_again(child)
    mesh.record(ready=True)
