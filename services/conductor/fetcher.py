"""Fetches snapshots of owners whose stream wants one: page by page, few at once, with back-off."""

import asyncio
import random
from collections.abc import Callable

from moonpool.bus import Bus, NoResponder
from moonpool.clock import Clock
from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.events import SnapshotPage, SnapshotRequest
from moonpool.messages.ids import OwnerId
from moonpool.messages.subjects import Subjects
from moonpool.runtime import Backoff
from services.conductor.holdings import Holdings, PageResult

_AT_ONCE_MAX = 8
_PAGE_TIMEOUT_S = 5.0
_FIRST_WAIT_S = 0.05
_WAIT_MAX_S = 5.0
_PAGES_MAX = 1 << 20  # a snapshot without end is none

OnNoResponder = Callable[[str, str], None]  # (owner, epoch): nobody serves its snapshots


class SnapshotFetcher:
    """`wake` when a stream may want a snapshot; `run` until cancelled."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        clock: Clock,
        holdings: Holdings,
        on_no_responder: OnNoResponder,
        seed: str,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._holdings = holdings
        self._on_no_responder = on_no_responder
        self._rng = random.Random(seed)
        self._wake = asyncio.Event()
        self._running: set[OwnerId] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE_MAX)
        self.fetched = 0
        self.failed = 0

    def wake(self) -> None:
        """Look again at who wants a snapshot."""
        self._wake.set()

    async def run(self) -> None:
        """Starts a fetch for every owner that wants one. Cancellation stops all of them."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for owner in self._holdings.wanting():
                    if owner not in self._running:
                        self._running.add(owner)
                        group.create_task(self._follow(owner), name=f"snapshot of {owner}")

    async def _follow(self, owner: OwnerId) -> None:
        """Tries until the owner's stream follows its events, or the owner is gone."""
        backoff = Backoff(_FIRST_WAIT_S, _WAIT_MAX_S, self._rng)
        try:
            while True:
                async with self._slots:
                    if await self._fetch(owner):
                        return
                await self._clock.sleep(backoff.next_s())
        finally:
            self._running.discard(owner)
            self._wake.set()  # it may have begun to want one again meanwhile

    async def _fetch(self, owner: OwnerId) -> bool:
        """One try. True when no other is needed."""
        epoch = self._holdings.begin_snapshot(owner)
        if epoch is None:
            return True
        try:
            result = await self._pages(owner, epoch)
        except NoResponder:
            self.failed += 1
            self._holdings.abandon_snapshot(owner, epoch)
            self._on_no_responder(owner, epoch)
            return self._holdings.epoch(owner) is None
        except MoonpoolError:
            self.failed += 1
            self._holdings.abandon_snapshot(owner, epoch)
            return False
        except asyncio.CancelledError:
            self._holdings.abandon_snapshot(owner, epoch)
            raise
        self.fetched += result is PageResult.DONE
        return result is PageResult.DONE

    async def _pages(self, owner: OwnerId, epoch: str) -> PageResult:
        subject = self._subjects.kv_snapshot(owner)
        cursor = 0
        for _ in range(_PAGES_MAX):
            request = SnapshotRequest(cursor=cursor, epoch=epoch)
            answer = await self._bus.request(subject, encode(request), _PAGE_TIMEOUT_S)
            page = decode(answer, SnapshotPage)
            result = self._holdings.apply_page(page, epoch)
            if result is not PageResult.MORE:
                return result
            cursor = page.next_cursor
        self._holdings.abandon_snapshot(owner, epoch)
        return PageResult.RESTART

    def stats(self) -> dict[str, int]:
        return {
            "snapshots_running": len(self._running),
            "snapshots_fetched": self.fetched,
            "snapshots_failed": self.failed,
        }
