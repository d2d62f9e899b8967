"""Asks silent owners whether anybody is there: a subject that nobody serves is a proof of death.

A killed process is erased within about two seconds, while one that only stalls keeps its entries.
"""

import asyncio
from collections.abc import Callable, Iterable

from moonpool.bus import Bus, NoResponder
from moonpool.messages.codec import encode
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.events import SnapshotRequest
from moonpool.messages.subjects import Subjects
from services.conductor.fleet import Member

_TIMEOUT_S = 1.0
_AT_ONCE_MAX = 16

OnNoResponder = Callable[[str, str], None]

# No owner has this epoch, so that the question costs it nothing but a refusal.
_QUESTION = encode(SnapshotRequest(cursor=0, epoch="?"))


class Prober:
    """`ask` about members; `run` until cancelled."""

    def __init__(self, bus: Bus, subjects: Subjects, on_no_responder: OnNoResponder) -> None:
        self._bus = bus
        self._subjects = subjects
        self._on_no_responder = on_no_responder
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue(_AT_ONCE_MAX)
        self._asked: set[str] = set()
        self.probes = 0
        self.deaths = 0

    def ask(self, members: Iterable[Member]) -> None:
        """Probes these soon; who is being asked already, or does not fit, is left for later."""
        for member in members:
            if member.id not in self._asked and not self._queue.full():
                self._asked.add(member.id)
                self._queue.put_nowait((member.id, member.epoch))

    async def run(self) -> None:
        """Cancellable; probes under way are dropped."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE_MAX):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            id, epoch = await self._queue.get()
            try:
                self.probes += 1
                await self._bus.request(self._subjects.kv_snapshot(id), _QUESTION, _TIMEOUT_S)
            except NoResponder:
                self.deaths += 1
                self._on_no_responder(id, epoch)
            except MoonpoolError:
                pass  # any answer, or a mere timeout, proves nothing against it
            finally:
                self._asked.discard(id)

    def stats(self) -> dict[str, int]:
        return {"probes": self.probes, "probes_without_responder": self.deaths}
