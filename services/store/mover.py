"""Makes the moves that the ladder orders, in threads, and says how they ended.

Each vault has a lane: a queue, its threads, its health. Reads for waiting readers come first,
writes last. The ladder bounds what is under way, and so the queues.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, TypeVar

from moonpool.clock import Clock
from moonpool.kv import BlockKey
from services.store.collecting import uncollected
from services.store.health import Health
from services.store.ladder import Ladder
from services.store.moves import Demotion, Descent, Erasure, Move, Outcome, Promotion
from services.store.packed.table import not_among
from services.store.records import Record
from services.store.shelf import Shelf
from services.store.tiers.errors import (
    RecordDamaged,
    RecordMissing,
    VaultAway,
    VaultReadOnly,
    VaultRefused,
)
from services.store.tiers.vault import Item, Vault

R = TypeVar("R")

QUEUE_MAX = 8192  # above all that the ladder has under way at a time
LOOK_S = 0.2
REFRESH_S = 30.0  # a shared tier is listed so often, ..
FORGET_STEP = 1024  # keys, before others have their turn
REFRESH_FACTOR = 20.0  # .. but for at most a twentieth of the time
OPEN_AGAIN_S = 5.0  # after the telling of what lies there broke off
_URGENCY = {Promotion: 0, Erasure: 1, Demotion: 2, Descent: 3}
_LOST = (RecordDamaged, RecordMissing)
_TROUBLE = (VaultAway, VaultRefused, VaultReadOnly)
Queue = asyncio.PriorityQueue[tuple[int, int, Move]]


@dataclass(slots=True)
class Lane:
    shelf: Shelf
    vault: Vault
    threads: int
    pool: ThreadPoolExecutor
    health: Health = field(default_factory=Health)
    is_open: bool = False  # all that lies there has been told
    open_again_s: float = 0.0
    list_again_s: float = 0.0  # a shared vault, to see what others did
    queue: Queue = field(default_factory=lambda: asyncio.PriorityQueue(QUEUE_MAX))


class Mover:
    """One per node. `on_change` is called on the loop after whatever changed the ladder."""

    def __init__(
        self, ladder: Ladder, segment: memoryview, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self._ladder = ladder
        self._segment = segment
        self._clock = clock
        self._on_change = on_change
        self._lanes: dict[str, Lane] = {}
        self._loading: dict[BlockKey, asyncio.Future[None]] = {}
        self._leaving: dict[Demotion, asyncio.Future[None]] = {}
        self._erasing: dict[Erasure, asyncio.Future[None]] = {}
        self._moves = 0
        self.refresh_s = REFRESH_S

    def add(self, shelf: Shelf, vault: Vault, threads: int) -> None:
        """Before `run`. The shelf's bytes lie in the vault."""
        pool = ThreadPoolExecutor(threads, thread_name_prefix=vault.name)
        self._lanes[shelf.name] = Lane(shelf, vault, threads, pool)

    async def open(self, name: str) -> None:
        """Opens one vault now, rather than when `run` comes to it; its health says how it went."""
        await self._open(self._lanes[name])

    async def run(self) -> None:
        """Until cancelled, or at once when there is no lower tier. What threads have begun ends in
        `close`."""
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes.values():
                group.create_task(self._keep(lane), name=f"{lane.vault.name}: health")
                for number in range(lane.threads):
                    group.create_task(self._work(lane), name=f"{lane.vault.name}: {number}")

    def begin(self, moves: Sequence[Move]) -> None:
        """Hands moves to their lanes."""
        loop = asyncio.get_running_loop()
        for move in moves:
            self._moves += 1
            if isinstance(move, Promotion):
                self._loading[move.obj.key] = loop.create_future()
            elif isinstance(move, Demotion):
                self._leaving[move] = loop.create_future()
            elif isinstance(move, Erasure):
                self._erasing[move] = loop.create_future()
            lane = self._lanes[move.shelf.name]
            lane.queue.put_nowait((_URGENCY[type(move)], self._moves, move))

    async def wait_loaded(self, keys: Sequence[BlockKey], wait_s: float) -> bool:
        """Returns when those of them that are being loaded are here, or not to be had, or, if none
        is, when something has sunk or gone that was in its way; or when the time is over. False
        when nothing is under way."""
        waits = [self._loading[key] for key in keys if key in self._loading]
        if waits:
            await asyncio.wait(waits, timeout=wait_s)
        elif self._leaving or (self._erasing and self._ladder.is_making_room()):
            everything = [*self._leaving.values(), *self._loading.values()]
            everything += self._erasing.values()
            await asyncio.wait(everything, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            waits = everything
        return bool(waits)

    async def wait_secured(self, keys: Sequence[BlockKey], wait_s: float) -> bool:
        """Returns when what is on its way down of these has arrived, or else when something is
        gone that was in the way. False when there is nothing to wait for."""
        wanted = set(keys)
        waits = [wait for move, wait in self._leaving.items() if move.obj.key in wanted]
        if not waits:
            waits = [w for move, w in self._erasing.items() if move.record.key in wanted]
        if waits:
            await asyncio.wait(waits, timeout=wait_s)
        elif self._ladder.is_making_room(keys):
            waits = [*self._erasing.values(), *self._leaving.values()]
            if waits:
                await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(waits)

    async def wait_erased(self, wait_s: float) -> bool:
        """Whether all that was removed until now is erased within the time."""
        waits = list(self._erasing.values())
        if not waits:
            return True
        _, late = await asyncio.wait(waits, timeout=wait_s)
        return not late

    async def read(self, shelf: Shelf, record: Record) -> memoryview | None:
        """A record's bytes, verified; None when they cannot be had now."""
        lane, item = self._lanes[shelf.name], record.item
        view = memoryview(bytearray(item.facts.size_bytes))
        shelf.begin_move(record)
        try:
            outcome, _ = await self._try(lane, lambda vault: vault.read(item, view))
        finally:
            shelf.end_move(record)
        return view if outcome is Outcome.DONE else None

    def close(self) -> None:
        """Waits for what threads have begun: their memory must not go before them. Idempotent."""
        for lane in self._lanes.values():
            lane.pool.shutdown(wait=True, cancel_futures=True)
            lane.vault.close()

    def stats(self) -> dict[str, int]:
        queued = {f"{name}_queued": lane.queue.qsize() for name, lane in self._lanes.items()}
        return {"moves": self._moves, "loading": len(self._loading), **queued}

    # --- a lane's health ---

    async def _keep(self, lane: Lane) -> NoReturn:
        while True:
            now_s = self._clock.now()
            is_due = lane.health.probe_due(now_s)
            if lane.is_open and is_due:
                await self._probe(lane)
            elif not lane.is_open and (
                is_due or (lane.health.readable and now_s >= lane.open_again_s)
            ):
                await self._open(lane)
            elif lane.vault.is_shared and lane.health.readable and now_s >= lane.list_again_s:
                await self._refresh(lane)
            self._show(lane)
            await self._clock.sleep(LOOK_S)

    async def _open(self, lane: Lane) -> None:
        try:
            pages = lane.vault.open()
            while (page := await self._in_thread(lane, partial(_next_of, pages))) is not None:
                lane.health.succeeded(wrote=False)
                with uncollected():
                    self._ladder.load(lane.shelf, page, self._clock.now())
                self._show(lane)
        except _TROUBLE as error:
            lane.health.failed(error, self._clock.now())
            lane.open_again_s = self._clock.now() + OPEN_AGAIN_S
            self._show(lane)
            return
        lane.is_open = True
        lane.list_again_s = self._clock.now() + self.refresh_s
        lane.shelf.end_load()

    async def _refresh(self, lane: Lane) -> None:
        """What others put there and erased since the last look; their bytes count like ours."""
        began_s, before = self._clock.now(), lane.shelf.records.live_keys()
        found: list[bytes] = []  # packed keys
        try:
            pages = lane.vault.open()
            while (page := await self._in_thread(lane, partial(_next_of, pages))) is not None:
                found.append(b"".join(item.facts.key for item in page))
                self._ladder.load(lane.shelf, page, self._clock.now(), is_refresh=True)
                self._on_change()
        except _TROUBLE as error:
            lane.health.failed(error, self._clock.now())
        else:
            missing = await self._in_thread(lane, partial(not_among, before, found))
            for start in range(0, len(missing), FORGET_STEP):
                lane.shelf.forget(missing[start : start + FORGET_STEP])
                self._on_change()
                await asyncio.sleep(0)
        took_s = self._clock.now() - began_s
        lane.list_again_s = self._clock.now() + max(self.refresh_s, REFRESH_FACTOR * took_s)

    async def _probe(self, lane: Lane) -> None:
        try:
            await self._in_thread(lane, lane.vault.probe)
        except _TROUBLE as error:
            lane.health.failed(error, self._clock.now())
        else:
            lane.health.succeeded(wrote=False)

    def _show(self, lane: Lane) -> None:
        """Lets the core know what the tier can do."""
        health = lane.health
        lane.shelf.set_condition(
            online=health.readable,
            writable=health.writable(self._clock.now()),
            health=health.text(),
        )
        self._on_change()

    # --- moves ---

    async def _work(self, lane: Lane) -> NoReturn:
        while True:
            _, _, move = await lane.queue.get()
            if isinstance(move, Promotion):
                await self._promote(lane, move)
            elif isinstance(move, Erasure):
                await self._erase(lane, move)
            elif isinstance(move, Demotion):
                await self._demote(lane, move)
            else:
                outcome = await self._descend(lane, move)
                self._ladder.end_descent(move, outcome, self._clock.now())
            self._show(lane)

    async def _demote(self, lane: Lane, move: Demotion) -> None:
        obj = move.obj
        view = self._segment[obj.place : obj.place + obj.size_bytes]
        outcome = await self._write(lane, move.record.item, obj.checksums, view)
        if move.stays and outcome is Outcome.DONE:
            outcome, _ = await self._try(lane, lambda vault: vault.sync(), wrote=True)
        self._ladder.end_demotion(move, outcome, self._clock.now())
        self._leaving.pop(move).set_result(None)

    async def _promote(self, lane: Lane, move: Promotion) -> None:
        obj, item = move.obj, move.record.item
        view = self._segment[obj.place : obj.place + obj.size_bytes]
        outcome, checksums = await self._try(lane, lambda vault: vault.read(item, view))
        self._ladder.end_promotion(move, outcome, checksums or b"", self._clock.now())
        self._loading.pop(obj.key).set_result(None)

    async def _erase(self, lane: Lane, move: Erasure) -> None:
        item = move.record.item
        outcome, _ = await self._try(lane, lambda vault: vault.erase(item))
        self._ladder.end_erasure(move, outcome)
        self._erasing.pop(move).set_result(None)

    async def _descend(self, lane: Lane, move: Descent) -> Outcome:
        item = move.source_record.item
        view = memoryview(bytearray(item.facts.size_bytes))
        source = self._lanes[move.source.name]
        outcome, checksums = await self._try(source, lambda vault: vault.read(item, view))
        if outcome is not Outcome.DONE or checksums is None:
            self._show(source)
            return outcome
        return await self._write(lane, move.record.item, checksums, view)

    async def _write(self, lane: Lane, item: Item, sums: bytes, view: memoryview) -> Outcome:
        outcome, _ = await self._try(lane, lambda vault: vault.write(item, sums, view), wrote=True)
        return outcome

    async def _try(
        self, lane: Lane, do: Callable[[Vault], R], *, wrote: bool = False
    ) -> tuple[Outcome, R | None]:
        """What became of it, noted in the lane's health. A tier that is away is not tried: what
        waits in its queue would wait for one time-out after the other."""
        now_s = self._clock.now()
        if not lane.health.readable or (wrote and not lane.health.writable(now_s)):
            return Outcome.FAILED, None
        try:
            result = await self._in_thread(lane, lambda: do(lane.vault))
        except _LOST:
            return Outcome.LOST, None
        except _TROUBLE as error:
            lane.health.failed(error, self._clock.now())
            return Outcome.FAILED, None
        lane.health.succeeded(wrote=wrote)
        return Outcome.DONE, result

    @staticmethod
    async def _in_thread(lane: Lane, do: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(lane.pool, do)


def _next_of(pages: Iterator[Sequence[Item]]) -> Sequence[Item] | None:
    with uncollected():
        return next(pages, None)
