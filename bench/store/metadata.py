"""Metadata operations of one node: how many a second, and how long the slowest of a hundred takes.

A node process, a NATS server and this client on one machine; many requests under way at a time.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from bench.store.ours import NODE, OurStore
from bench.store.rounds import percentile, say

LANES = 32
BATCH = 64
KEYS = 4096
SIZE_BYTES = 4096


async def metadata(store: OurStore, seconds: float) -> dict[str, Any]:
    """Looking up one key per message, leasing one, and looking up many per message."""
    say("metadata operations of one node")
    names = [f"m{number}" for number in range(KEYS)]
    for start in range(0, KEYS, 256):
        await store.fill(names[start : start + 256], SIZE_BYTES)
    calls, tenant = store.client.blocks.calls, store.client.tenant
    numbers = itertools.count()
    keys = [store.client.key(name) for name in names]

    async def look() -> int:
        key = keys[next(numbers) % KEYS]
        reply = await calls.get_start(NODE, tenant, [key], 0.0)
        return len(reply.slots)

    async def lease() -> int:
        key = keys[next(numbers) % KEYS]
        reply = await calls.get_start(NODE, tenant, [key], 10.0)
        await calls.get_end(NODE, reply.lease)
        return 2

    async def look_many() -> int:
        first = next(numbers) * BATCH % KEYS
        reply = await calls.get_start(NODE, tenant, keys[first : first + BATCH], 0.0)
        return len(reply.slots)

    out: dict[str, Any] = {}
    for name, do in [
        ("metadata", look),
        ("metadata_lease", lease),
        ("metadata_batch64", look_many),
    ]:
        out |= await _rate(name, do, seconds)
    return out


async def _rate(name: str, do: Callable[[], Awaitable[int]], seconds: float) -> dict[str, float]:
    took_s: list[float] = []
    done = 0
    began_s = perf_counter()

    async def lane() -> None:
        nonlocal done
        while (start_s := perf_counter()) - began_s < seconds:
            more = await do()
            done += more
            took_s.append(perf_counter() - start_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(LANES):
            group.create_task(lane())
    all_s = perf_counter() - began_s
    return {
        f"{name}_ops_s": round(done / all_s),
        f"{name}_p50_ms": round(percentile(took_s, 0.5) * 1e3, 2),
        f"{name}_p99_ms": round(percentile(took_s, 0.99) * 1e3, 2),
    }
