"""A conductor starts again: the index from the snapshots of all owners, page by page over a bus.

Owners answer from the same core, so that their share of the work is in the figure too.
"""

import asyncio
import random
import time

from moonpool.bus import Endpoint, MemoryBroker, MemoryBus, Service
from moonpool.clock import RealClock
from moonpool.kv import KEY_BYTES, BlockKey
from moonpool.messages.codec import decode, encode
from moonpool.messages.events import SnapshotRequest
from moonpool.messages.ids import OwnerId
from moonpool.messages.subjects import Subjects
from moonpool.runtime.kv_log import KvLog
from services.conductor.fetcher import SnapshotFetcher
from services.conductor.holdings import Holdings, StreamState

OWNERS = 16
WAIT_S = 60.0


def bench_restart(blocks: int) -> dict[str, float]:
    """`restart_s_per_million_blocks`."""
    seconds, found = asyncio.run(_restart(blocks))
    return {"restart_s_per_million_blocks": round(seconds * 1e6 / found, 3)}


async def _restart(blocks: int) -> tuple[float, int]:
    rng, bus, subjects = random.Random(3), MemoryBus(MemoryBroker()), Subjects()
    holdings, clock = Holdings(), RealClock()
    fetcher = SnapshotFetcher(bus, subjects, clock, holdings, lambda *_: None, "seed")
    services = []
    for number in range(OWNERS):
        owner = OwnerId(f"o{number}")
        packed = rng.randbytes(blocks // OWNERS * KEY_BYTES)
        services.append(await _serve(bus, subjects, owner, packed))
        holdings.begin_life(owner, "e")
    before = time.perf_counter()
    task = asyncio.create_task(fetcher.run())
    fetcher.wake()
    async with asyncio.timeout(WAIT_S):
        while any(
            holdings.state(owner) is not StreamState.FOLLOWING for owner in holdings.owners()
        ):
            await clock.sleep(0.001)
    seconds = time.perf_counter() - before
    task.cancel()
    await asyncio.wait({task})
    for service in services:
        await service.close()
    await bus.close()
    return seconds, len(holdings.index)


async def _serve(bus: MemoryBus, subjects: Subjects, owner: OwnerId, packed: bytes) -> Service:
    keys = [BlockKey(packed[at : at + KEY_BYTES]) for at in range(0, len(packed), KEY_BYTES)]
    log = KvLog(owner, "e", {"dram": lambda: keys})

    async def answer(payload: bytes) -> bytes:
        return encode(log.page(decode(payload, SnapshotRequest), 0.0))

    return await bus.serve(
        owner, "e", "1", [Endpoint("kv_snapshot", subjects.kv_snapshot(owner), answer)]
    )
