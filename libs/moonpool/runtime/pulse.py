"""What every process says of itself each second: its metrics, on `mp.metrics.<role>.<id>`."""

import os
import time
from typing import TypeVar

from moonpool.bus import BusUnavailable
from moonpool.runtime.context import ServiceContext
from moonpool.settings import CommonSettings
from moonpool.telemetry import names

S = TypeVar("S", bound=CommonSettings)

PERIOD_S = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def publish_metrics(context: ServiceContext[S]) -> None:
    """Publishes a snapshot each second until cancelled. Skips seconds without a connection."""
    metrics, clock = context.metrics, context.clock
    lag = metrics.gauge(names.LOOP_LAG_SECONDS)
    subject = context.subjects.metrics(context.role, context.id)
    while True:
        before_s = clock.now()
        await clock.sleep(PERIOD_S)
        lag.set(max(0.0, clock.now() - before_s - PERIOD_S))
        observe_process(context)
        snapshot = metrics.snapshot(
            service=context.role,
            id=context.id,
            epoch=context.epoch,
            unix_s=clock.unix(),
            uptime_s=max(0.0, clock.now() - context.started_s),
        )
        try:
            await context.bus.publish(subject, snapshot.model_dump_json().encode())
        except BusUnavailable as error:
            context.log.debug("a metrics snapshot was lost", extra={"error": str(error)})


def observe_process(context: ServiceContext[S]) -> None:
    """Brings the gauges of bus and process up to date; `/metrics` calls it too."""
    metrics, bus = context.metrics, context.bus.stats()
    metrics.gauge(names.BUS_REQUESTS).set(bus["requests"])
    metrics.gauge(names.BUS_TIMEOUTS).set(bus["timeouts"])
    metrics.gauge(names.BUS_DROPPED).set(bus["dropped"])
    metrics.gauge(names.BUS_RECONNECTS).set(bus["reconnects"])
    metrics.gauge(names.PROCESS_CPU_SECONDS).set(time.process_time())
    metrics.gauge(names.PROCESS_RSS_BYTES).set(_resident_bytes())


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:  # no /proc on this system
        return 0
