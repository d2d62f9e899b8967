"""What a node says of itself: load reports to conductors, and metrics."""

from collections.abc import Callable
from typing import NoReturn

from moonpool.bus import BusUnavailable
from moonpool.messages.codec import encode
from moonpool.messages.load import LoadReport
from moonpool.runtime import ServiceContext
from moonpool.settings import StoreSettings
from moonpool.telemetry import names
from services.store.core import StoreCore

PERIOD_S = 0.1
SILENCE_MAX_S = 1.0

_PUTS = ("committed", "abandoned", "corrupt", "expired", "reclaimed", "no_space")


class Reporter:
    """Reports at most ten times a second, on change, and at least once a second."""

    def __init__(self, context: ServiceContext[StoreSettings], core: StoreCore) -> None:
        self._context = context
        self._core = core
        self._seq = 0
        self._lost = 0
        self._said: tuple[str, int] | None = None  # (state, bytes used)
        self._said_s = 0.0
        self._counted: dict[str, int] = {}

    async def run(self) -> NoReturn:
        """Until cancelled."""
        self._follow()
        while True:
            await self._context.clock.sleep(PERIOD_S)
            self._count()
            await self._report()

    def stats(self) -> dict[str, int]:
        return {"reports": self._seq, "lost": self._lost}

    async def _report(self) -> None:
        core, now_s = self._core, self._context.clock.now()
        tier = core.residents.tier
        state = "draining" if core.draining else "ready"
        says = (state, tier.bytes_used)
        if says == self._said and now_s - self._said_s < SILENCE_MAX_S:
            return
        self._said, self._said_s = says, now_s
        self._seq += 1
        report = LoadReport(
            self._context.id,
            self._context.epoch,
            self._seq,
            state,
            tiers={tier.name: (tier.bytes_used, tier.bytes_total)},
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
        metrics.gauge(names.LEASES).follow(lambda: self._core.leases_open)

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
        self._rise("get_hits", counters["get_hits"], metrics.counter(names.GETS, tier).inc)
        self._rise("get_misses", counters["get_misses"], metrics.counter(names.GETS, "miss").inc)
        corrupt = metrics.counter(names.BLOCKS_CORRUPT, "store").inc
        self._rise("corrupt", counters["inspections_removed"] + counters["puts_corrupt"], corrupt)

    def _rise(self, name: str, value: int, inc: Callable[[float], None]) -> None:
        inc(value - self._counted.get(name, 0))
        self._counted[name] = value
