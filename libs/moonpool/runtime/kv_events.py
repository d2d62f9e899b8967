"""Tells conductors what an owner holds: coalesced events, and the snapshot endpoint beside them."""

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from moonpool.bus import BusClosed, BusUnavailable, Endpoint
from moonpool.kv import KEY_BYTES, BlockKey
from moonpool.messages.codec import decode, encode
from moonpool.messages.events import KvEvents, SnapshotRequest
from moonpool.messages.ids import OwnerId
from moonpool.runtime.background import background, end
from moonpool.runtime.context import ServiceContext
from moonpool.runtime.kv_log import KvLog, Listing
from moonpool.settings import CommonSettings
from moonpool.telemetry import names

S = TypeVar("S", bound=CommonSettings)

FLUSH_S = 0.02
FLUSH_KEYS = 2048  # pending keys that go out without waiting
BEACON_S = 2.0  # longest time without a message
_PAGE_KEYS_MAX = 16384


class EventPublisher:
    """`async with EventPublisher(..) as events:` publishes inside.

    `stored` and `removed` are cheap, never block, and belong on the event loop's thread, in the
    order in which it happened. `listings` are called there too, one per tier, and must agree with
    what has been said so far.
    """

    def __init__(self, context: ServiceContext[S], listings: Mapping[str, Listing]) -> None:
        self._bus = context.bus
        self._clock = context.clock
        self._subject = context.subjects.kv_events(context.id)
        self._snapshot_subject = context.subjects.kv_snapshot(context.id)
        self._counters = context.metrics.counters(names.EVENTS_PUBLISHED)
        self._log = KvLog(OwnerId(context.id), context.epoch, listings)
        self._dirty = asyncio.Event()
        self._full = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()  # flushes one after the other: messages go out in their order
        self._said_s = 0.0
        self._lost = 0

    def stored(self, tier: str, keys: Iterable[BlockKey]) -> None:
        self._log.stored(tier, keys)
        self._wake()

    def removed(self, tier: str, keys: Iterable[BlockKey]) -> None:
        self._log.removed(tier, keys)
        self._wake()

    def relist(self) -> None:
        """More changed than can be told: readers find a gap and ask for a snapshot."""
        self._log.relist()
        self._wake()

    def endpoint(self) -> Endpoint:
        """Serve it together with the owner's other endpoints."""
        return Endpoint("kv_snapshot", self._snapshot_subject, self._on_snapshot)

    async def flush(self) -> None:
        """Everything said so far has been handed to the bus when it returns. Others have a turn
        between two messages."""
        async with self._lock:
            while (message := self._log.take_next()) is not None:
                await self._publish(message)
                await asyncio.sleep(0)

    async def start(self) -> None:
        self._said_s = self._clock.now()
        self._tasks = [
            background(self._flush_when_dirty(), "kv events"),
            background(self._beacon_when_idle(), "kv beacon"),
        ]

    async def close(self) -> None:
        """Says what is left. Idempotent."""
        if not self._tasks:
            return
        await end(self._tasks)
        await self.flush()

    def stats(self) -> dict[str, int]:
        return {**self._log.stats(), "lost": self._lost}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _wake(self) -> None:
        self._dirty.set()
        if self._log.pending_keys >= FLUSH_KEYS:
            self._full.set()

    async def _flush_when_dirty(self) -> None:
        while True:
            await self._dirty.wait()
            await self._wait_a_little()
            self._dirty.clear()
            self._full.clear()
            await self.flush()

    async def _wait_a_little(self) -> None:
        """Returns after FLUSH_S, or when much is pending."""
        naps = [
            asyncio.ensure_future(self._clock.sleep(FLUSH_S)),
            asyncio.ensure_future(self._full.wait()),
        ]
        try:
            await asyncio.wait(naps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for nap in naps:
                nap.cancel()

    async def _beacon_when_idle(self) -> None:
        while True:
            await self._clock.sleep(BEACON_S)
            if self._clock.now() - self._said_s >= BEACON_S:
                async with self._lock:
                    await self._publish(self._log.beacon())

    async def _publish(self, message: KvEvents) -> None:
        self._said_s = self._clock.now()
        try:
            await self._bus.publish(self._subject, encode(message))
        except (BusUnavailable, BusClosed):
            self._lost += 1  # its number is used up: readers see the gap and ask for a snapshot
            return
        for change, keys in (("stored", message.stored), ("removed", message.removed)):
            if keys:
                self._counters.labels(message.tier, change).inc(len(keys) // KEY_BYTES)

    async def _on_snapshot(self, payload: bytes) -> bytes:
        request = decode(payload, SnapshotRequest)
        fits = self._bus.payload_max_bytes // 2 // KEY_BYTES
        keys_max = min(request.keys_max, fits, _PAGE_KEYS_MAX)
        page = self._log.page(
            SnapshotRequest(request.cursor, request.epoch, keys_max), self._clock.now()
        )
        return encode(page)
