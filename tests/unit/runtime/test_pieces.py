"""Ids, back-off, background tasks, the pulse."""

import asyncio
import random
from typing import Any

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.clock import VirtualClock
from moonpool.messages import CallerError
from moonpool.messages.metrics import MetricsSnapshotV1, read_metrics
from moonpool.runtime import Backoff, background, end, new_context, publish_metrics
from moonpool.runtime.background import FATAL
from moonpool.runtime.identity import host_id, new_epoch, new_id
from moonpool.settings import StoreSettings, load_settings


def test_backoff_doubles_up_to_its_limit_and_spreads() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(7))
    waits = [backoff.next_s() for _ in range(8)]
    for wait, full in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0), strict=True):
        assert full / 2 <= wait <= full
    assert len(set(waits[4:])) == 4
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_ids_are_made_or_checked() -> None:
    assert new_id("store", "").startswith("store-")
    assert new_id("store", "n1") == "n1"
    with pytest.raises(CallerError, match="id"):
        new_id("store", "a.b")
    assert new_epoch() != new_epoch()
    assert host_id("box-1") == "box-1"
    assert host_id("") == host_id("") != ""


async def test_a_background_task_that_fails_is_told_to_the_loop_at_once() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

    async def broken() -> None:
        raise ZeroDivisionError

    async def forever() -> None:
        await asyncio.Event().wait()

    tasks = [background(broken(), "broken"), background(forever(), "forever")]
    await asyncio.wait(tasks[:1])
    await asyncio.sleep(0)
    await end(tasks)
    await end(tasks)
    assert [type(each["exception"]) for each in told] == [ZeroDivisionError]
    assert FATAL in told[0]


async def test_metrics_are_published_each_second() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    context = new_context(
        "store", load_settings(StoreSettings, {"MOONPOOL_ID": "n1"}), MemoryBus(broker), clock=clock
    )
    seen: list[MetricsSnapshotV1] = []

    async def note(subject: str, payload: bytes) -> None:
        assert subject == "mp.metrics.store.n1"
        seen.append(read_metrics(payload))

    await MemoryBus(broker).subscribe("mp.metrics.>", note)
    pulse = asyncio.create_task(publish_metrics(context))
    await clock.advance(3.5)
    await end([pulse])
    assert [each.uptime_s for each in seen] == [1.0, 2.0, 3.0]
    assert (seen[0].service, seen[0].id, seen[0].epoch) == ("store", "n1", context.epoch)
    values = {sample.name: sample.value for sample in seen[-1].samples}
    assert values["moonpool_process_resident_bytes"] > 1 << 20
    assert values["moonpool_info"] == 1
