"""Carries out what `balance.py` decides: the first conductor by id tells nodes what to copy.

One order at a time: a node answers when its copy is there, so a slow link slows the balancer.
"""

import logging
from collections import Counter

from moonpool.bus import Bus
from moonpool.clock import Clock
from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.ids import TenantId
from moonpool.messages.store import CopyReply, CopyRequest, SpareReply, SpareRequest
from moonpool.messages.subjects import Subjects
from moonpool.telemetry import Metrics, names
from services.conductor.balance import Order
from services.conductor.core import ConductorCore
from services.conductor.switching import leads

EVERY_S = 1.0
_COPY_TIMEOUT_S = 20.0
_SPARE_TIMEOUT_S = 2.0


class BalanceKeeper:
    """`run` until cancelled."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        clock: Clock,
        core: ConductorCore,
        id: str,
        log: logging.Logger,
        metrics: Metrics,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._core = core
        self._id = id
        self._log = log
        self._blocks = metrics.counters(names.BALANCED_BLOCKS)
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY_S)
            if leads(self._id, self._core.fleet):
                for order in self._core.balance(self._clock.now()):
                    await self._tell(order)

    async def _tell(self, order: Order) -> None:
        verb = "copy" if order.target else "spare"
        try:
            results = await (self._copy(order) if order.target else self._spare(order))
        except MoonpoolError as error:
            self.outcomes["untold"] += 1
            self._blocks.labels(verb, "untold").inc()
            self._log.warning("not balanced node=%s verb=%s error=%s", order.source, verb, error)
            return
        for outcome, count in Counter(results).items():
            self.outcomes[outcome] += count
            self._blocks.labels(verb, outcome).inc(count)
        self._log.info(
            "balanced node=%s verb=%s target=%s outcome=%s",
            order.source,
            verb,
            order.target or "-",
            dict(Counter(results)),
        )

    async def _copy(self, order: Order) -> list[str]:
        message = CopyRequest(TenantId(order.tenant), order.keys, order.target)
        subject = self._subjects.store(order.source, "copy")
        answer = await self._bus.request(subject, encode(message), _COPY_TIMEOUT_S)
        return decode(answer, CopyReply).results

    async def _spare(self, order: Order) -> list[str]:
        message = SpareRequest(TenantId(order.tenant), order.keys)
        subject = self._subjects.store(order.source, "spare")
        answer = await self._bus.request(subject, encode(message), _SPARE_TIMEOUT_S)
        return decode(answer, SpareReply).results

    def stats(self) -> dict[str, int]:
        return {f"balanced_{outcome}": count for outcome, count in self.outcomes.items()}
