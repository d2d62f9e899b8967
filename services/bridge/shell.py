"""The bridge as a process: the engine's events in, ours out, and a look at its health."""

import asyncio
from functools import partial

import httpx

from moonpool.messages.codec import MalformedMessage
from moonpool.messages.errors import MoonpoolError
from moonpool.runtime import EventPublisher, Heart, ServiceContext, say_hello
from moonpool.settings import BridgeSettings, SettingsError
from services.bridge.ledger import TIERS, Change, Ledger, held_changes
from services.bridge.link import EngineLink
from services.bridge.order import Order, Verdict
from services.bridge.vllm_events import Batch, read_batch

HEALTH_EVERY_S = 2.0
HEALTH_TIMEOUT_S = 2.0
SICK_AFTER = 3  # looks in a row that found nothing
CHECK_EVERY_S = 30.0

Context = ServiceContext[BridgeSettings]


class Bridge:
    """Follows one engine. All on the event loop, one batch at a time."""

    def __init__(
        self, context: Context, link: EngineLink, events: EventPublisher, ledger: Ledger
    ) -> None:
        self._context = context
        self._link = link
        self._events = events
        self.ledger = ledger
        self._order = Order()
        self._turn = asyncio.Lock()  # a batch, or a recovery, is taken in whole
        self.batches = self.gaps = self.lost_gaps = self.restarts = self.malformed = 0

    async def follow(self) -> None:
        """Until cancelled."""
        await self.catch_up()
        async for seq, payload in self._link.batches():
            async with self._turn:
                await self._take(seq, payload)

    async def catch_up(self) -> None:
        """What the engine did before we came, as far as it still knows."""
        async with self._turn:
            self._forget()
            self._order.restart()
            if self._link.can_replay:
                await self._replay()

    async def forget(self) -> None:
        """The engine is away: nobody may count on what it held."""
        async with self._turn:
            self._forget()

    async def _take(self, seq: int, payload: bytes) -> None:
        batch = self._read(payload)
        if batch is None:
            return  # its number stays missing: the next batch shows the gap
        verdict = self._order.judge(seq, batch.unix_s)
        if verdict is Verdict.RESTART:
            self.restarts += 1
            self._context.log.warning("the engine began anew", extra={"seq": seq})
            self._forget()
            self._order.restart()
            verdict = self._order.judge(seq, batch.unix_s)
        if verdict is Verdict.GAP:
            self.gaps += 1
            await self._recover(seq)
            verdict = self._order.judge(seq, batch.unix_s)
        if verdict in (Verdict.NEXT, Verdict.GAP):
            self._apply(seq, batch)

    async def _recover(self, seq: int) -> None:
        """Batches before `seq` are missing. What cannot be had again may have been removals, so
        that nothing held so far can be counted on."""
        if not (self._link.can_replay and await self._replay()):
            self._lost(seq)

    def _lost(self, before: int) -> None:
        self.lost_gaps += 1
        self._context.log.warning("events are lost", extra={"before": before})
        self._forget()

    async def _replay(self) -> bool:
        """Takes in what the engine has from the next number on; forgets what was held when the
        first of it is missing. False: it gave nothing."""
        first = self._order.next_seq
        try:
            replayed = await self._link.replay(first)
        except MoonpoolError as error:
            self._context.log.warning("no replay", extra={"error": error.message})
            return False
        if replayed and replayed[0][0] != first:
            self._lost(replayed[0][0])
        for seq, payload in replayed:
            batch = self._read(payload)
            if batch is not None and seq >= self._order.next_seq:
                self._apply(seq, batch)
        return bool(replayed)

    def _read(self, payload: bytes) -> Batch | None:
        try:
            return read_batch(payload)
        except MalformedMessage as error:
            self.malformed += 1
            self._context.log.error("malformed events", extra={"error": error.message})
            return None

    def _apply(self, seq: int, batch: Batch) -> None:
        self._order.took(seq, batch.unix_s)
        self.batches += 1
        self._tell(held_changes(batch.events, self.ledger))

    def _forget(self) -> None:
        self._tell(self.ledger.clear())

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            say = self._events.stored if change.held else self._events.removed
            say(change.tier, change.keys)

    def stats(self) -> dict[str, int]:
        return {
            **self.ledger.stats(),
            "batches": self.batches,
            "gaps": self.gaps,
            "lost_gaps": self.lost_gaps,
            "restarts": self.restarts,
            "malformed": self.malformed + self._link.malformed,
        }


async def watch_health(context: Context, bridge: Bridge, heart: Heart) -> None:
    """Until cancelled: an engine that does not answer holds nothing, and one that comes back is
    asked what it holds."""
    url, missed = context.settings.bridge_engine_url.rstrip("/") + "/health", 0
    async with httpx.AsyncClient(timeout=HEALTH_TIMEOUT_S) as client:
        while True:
            try:
                well = (await client.get(url)).status_code == 200
            except httpx.HTTPError:
                well = False
            if well and missed >= SICK_AFTER:
                context.log.info("the engine is back")
                await bridge.catch_up()
            missed = 0 if well else missed + 1
            if missed == SICK_AFTER:
                context.log.warning("the engine does not answer", extra={"url": url})
                await bridge.forget()
            if well:
                heart.set_state("ready")
            elif missed >= SICK_AFTER:
                heart.set_state("starting")
            await context.clock.sleep(HEALTH_EVERY_S)


async def _check(context: Context, bridge: Bridge) -> None:
    while True:
        await context.clock.sleep(CHECK_EVERY_S)
        bridge.ledger.check()
        context.log.info("following", extra=bridge.stats())


async def serve(context: Context) -> None:
    """Serves until cancelled. Raises SettingsError."""
    settings = context.settings
    if not settings.bridge_endpoint or not settings.bridge_model:
        raise SettingsError("set MOONPOOL_BRIDGE_ENDPOINT and MOONPOOL_BRIDGE_MODEL")
    ledger = Ledger(settings.bridge_model)
    link = EngineLink(
        settings.bridge_endpoint, settings.bridge_replay_endpoint, settings.bridge_topic
    )
    registration = context.registration(url=settings.bridge_engine_url)
    listings = {tier: partial(ledger.keys, tier) for tier in TIERS}
    try:
        async with EventPublisher(context, listings) as events:
            bridge = Bridge(context, link, events, ledger)
            service = await context.serve(
                [events.endpoint()], {"engine": "vllm", "model": settings.bridge_model}
            )
            try:
                await say_hello(context, registration)
                asks = bool(settings.bridge_engine_url)
                heart = Heart(
                    context.bus,
                    context.subjects,
                    context.clock,
                    registration,
                    "starting" if asks else "ready",
                    settings.state_file,
                )
                async with heart, asyncio.TaskGroup() as tasks:
                    tasks.create_task(bridge.follow(), name="events")
                    tasks.create_task(_check(context, bridge), name="check")
                    if asks:
                        tasks.create_task(watch_health(context, bridge, heart), name="health")
            finally:
                await service.close()
    finally:
        link.close()
