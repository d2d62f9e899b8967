"""Audit events on their way to the stream: bounded, retried, never in a request's way."""

import asyncio
import logging
from collections import deque

from moonpool.bus import Bus
from moonpool.messages.audit import AuditEventV1
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.subjects import Subjects
from moonpool.telemetry import Counter

log = logging.getLogger(__name__)

WAITING_MAX = 10_000
STREAM_BYTES_MAX = 256 << 20
PUBLISH_TIMEOUT_S = 5.0
RETRY_S = 1.0
EVENT = "request_end"


def stream_name(mesh: str) -> str:
    """`MP_AUDIT`, or with the mesh's own prefix where several share one server."""
    return f"{mesh.upper().replace('.', '_')}_AUDIT"


class Audit:
    """`add` never waits; `run` delivers in order until cancelled."""

    def __init__(self, bus: Bus, subjects: Subjects, lost: Counter) -> None:
        self._bus = bus
        self._subjects = subjects
        self._lost = lost
        self._waiting: deque[AuditEventV1] = deque()  # len <= WAITING_MAX
        self._arrived = asyncio.Event()
        self._delivered = self._retries = 0
        self._away = False  # no stream accepts; said once

    def add(self, event: AuditEventV1) -> None:
        """The oldest goes, and is counted, when too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._lost.inc()
        self._waiting.append(event)
        self._arrived.set()

    async def run(self) -> None:
        """Until cancelled."""
        ready = False
        while True:
            ready = ready or await self._ensure_stream()
            if ready and not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            elif not ready or not await self._deliver(self._waiting[0]):
                ready = False
                self._retries += 1
                await asyncio.sleep(RETRY_S)

    async def flush(self, grace_s: float) -> None:
        """Delivers what waits, at the end; what cannot be delivered in time is counted as lost."""
        try:
            async with asyncio.timeout(grace_s):
                while self._waiting and await self._deliver(self._waiting[0]):
                    pass
        except TimeoutError:
            log.warning("audit events could not be delivered in time")
        self._lost.inc(len(self._waiting))
        self._waiting.clear()

    def stats(self) -> dict[str, int]:
        return {
            "waiting": len(self._waiting),
            "delivered": self._delivered,
            "retries": self._retries,
            "lost": int(self._lost.value),
        }

    async def _ensure_stream(self) -> bool:
        mesh = self._subjects.prefix
        try:
            await self._bus.ensure_stream(stream_name(mesh), [f"{mesh}.audit.>"], STREAM_BYTES_MAX)
        except MoonpoolError as error:
            self._say_away(error)
            return False
        return True

    async def _deliver(self, event: AuditEventV1) -> bool:
        subject = self._subjects.audit(event.tenant, EVENT)
        payload = event.model_dump_json().encode()
        try:
            await self._bus.publish_durable(subject, payload, PUBLISH_TIMEOUT_S)
        except MoonpoolError as error:
            self._say_away(error)
            return False
        if self._away:
            self._away = False
            log.info("audit events are accepted again")
        self._delivered += 1
        if self._waiting and self._waiting[0] is event:
            self._waiting.popleft()
        return True

    def _say_away(self, error: MoonpoolError) -> None:
        if not self._away:
            self._away = True
            log.warning("no stream accepts audit events: %s", error.message)
