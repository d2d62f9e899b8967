"""What a node says of itself: load reports to conductors, and metrics."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NoReturn

from moonpool.bus import BusUnavailable
from moonpool.messages.codec import encode
from moonpool.messages.load import LoadReport
from moonpool.runtime import ServiceContext, TransferMetrics
from moonpool.settings import StoreSettings
from moonpool.telemetry import names
from moonpool.transfer import TransferEngine
from services.store.core import StoreCore
from services.store.shelf import Shelf
from services.store.tiers import Ledger

PERIOD_S = 0.1
SILENCE_MAX_S = 1.0

_PUTS = ("committed", "abandoned", "corrupt", "expired", "reclaimed", "no_space", "over_quota")


_MOVED = ("done", "lost", "failed", "no_space", "over_quota")


class Reporter:
    """Reports at most ten times a second, on change, and at least once a second."""

    def __init__(
        self, context: ServiceContext[StoreSettings], core: StoreCore, transfer: TransferEngine
    ) -> None:
        self._context = context
        self._core = core
        self._moved = TransferMetrics(context.metrics, transfer)
        self._seq = 0
        self._lost = 0
        self._said: tuple[str, list[int]] | None = None  # (state, bytes used)
        self._said_s = 0.0
        self._counted: dict[str, int] = {}

    async def run(self) -> NoReturn:
        """Until cancelled."""
        self._follow()
        while True:
            await self._context.clock.sleep(PERIOD_S)
            self._count()
            self._moved.show()
            await self._report()

    def stats(self) -> dict[str, int]:
        return {"reports": self._seq, "lost": self._lost}

    async def _report(self) -> None:
        core, now_s = self._core, self._context.clock.now()
        tier = core.residents.tier
        state = "draining" if core.draining else "ready"
        tiers: list[Ledger] = [tier, *(shelf.tier for shelf in core.ladder.shelves)]
        says = (state, [each.bytes_used for each in tiers])
        if says == self._said and now_s - self._said_s < SILENCE_MAX_S:
            return
        self._said, self._said_s = says, now_s
        self._seq += 1
        report = LoadReport(
            self._context.id,
            self._context.epoch,
            self._seq,
            state,
            tiers={each.name: (each.bytes_used, each.bytes_total) for each in tiers},
        )
        try:
            await self._context.bus.publish(
                self._context.subjects.load(self._context.id), encode(report)
            )
        except BusUnavailable:
            self._lost += 1

    def _follow(self) -> None:
        metrics, residents = self._context.metrics, self._core.residents
        tier = residents.tier
        metrics.gauge(names.TIER_BYTES, tier.name).set(tier.bytes_total)
        metrics.gauge(names.TIER_BYTES_USED, tier.name).follow(lambda: tier.bytes_used)
        metrics.gauge(names.TIER_BLOCKS, tier.name).follow(lambda: residents.live)
        metrics.gauge(names.TIER_FRAGMENTATION, tier.name).follow(partial(_fragmentation, tier))
        for shelf in self._core.ladder.shelves:
            name, lower = shelf.name, shelf.tier
            metrics.gauge(names.TIER_BYTES, name).set(lower.bytes_total)
            metrics.gauge(names.TIER_BYTES_USED, name).follow(partial(_bytes_used, lower))
            metrics.gauge(names.TIER_BLOCKS, name).follow(partial(_blocks, shelf))
            metrics.gauge(names.TIER_FRAGMENTATION, name).follow(partial(_fragmentation, lower))
            metrics.gauge(names.TIER_USABLE, name).follow(partial(_is_usable, shelf))
        metrics.gauge(names.LEASES).follow(lambda: self._core.leases_open)
        for kind in ("hard", "soft"):
            metrics.gauge(names.PINS, kind).follow(partial(self._core.pins.count, kind))

    def _count(self) -> None:
        """Brings counters up to what the core has counted."""
        metrics, counters = self._context.metrics, self._core.counters
        tier = self._core.residents.tier.name
        self._rise(
            "evictions", self._core.residents.evictions, metrics.counter(names.EVICTIONS, tier).inc
        )
        for outcome in _PUTS:
            value = counters[f"puts_{outcome}"]
            self._rise(f"puts_{outcome}", value, metrics.counter(names.PUTS, outcome).inc)
        for name in [tier, *(shelf.name for shelf in self._core.ladder.shelves)]:
            hits = counters[f"get_hits_{name}"]
            self._rise(f"hits_{name}", hits, metrics.counter(names.GETS, name).inc)
        self._count_lower()
        copies, ahead = self._core.copies, metrics.counter(names.PROMOTED_AHEAD)
        self._rise("promoted_ahead", counters["promoted_ahead"], ahead.inc)
        for outcome, made in (("made", copies.copied), ("failed", copies.failed)):
            self._rise(f"replicas_{outcome}", made, metrics.counter(names.REPLICAS, outcome).inc)
        self._rise("get_misses", counters["get_misses"], metrics.counter(names.GETS, "miss").inc)
        corrupt = metrics.counter(names.BLOCKS_CORRUPT, "store").inc
        self._rise("corrupt", counters["inspections_removed"] + counters["puts_corrupt"], corrupt)

    def _count_lower(self) -> None:
        metrics, ladder = self._context.metrics, self._core.ladder
        for shelf in ladder.shelves:
            evictions = metrics.counter(names.EVICTIONS, shelf.name).inc
            self._rise(f"evictions_{shelf.name}", shelf.evictions, evictions)
            corrupt = metrics.counter(names.BLOCKS_CORRUPT, shelf.name).inc
            self._rise(f"lost_{shelf.name}", shelf.lost, corrupt)
        for kind, outcome in product(("promotions", "demotions"), _MOVED):
            value = ladder.counters[f"{kind}_{outcome}"]
            counter = metrics.counter(names.TIER_MOVES, kind, outcome)
            self._rise(f"{kind}_{outcome}", value, counter.inc)

    def _rise(self, name: str, value: int, inc: Callable[[float], None]) -> None:
        inc(value - self._counted.get(name, 0))
        self._counted[name] = value


def _bytes_used(tier: Ledger) -> float:
    return tier.bytes_used


def _fragmentation(tier: Ledger) -> float:
    return tier.fragmentation


def _blocks(shelf: Shelf) -> float:
    return shelf.live


def _is_usable(shelf: Shelf) -> float:
    return float(shelf.online)
