"""The node's event loop under churn: batches of puts and gets at a given rate of bytes, with nobody
moving any bytes, and a probe that notes how late the loop comes back to it.

The verbs, their messages, the index of a full tier, evictions and events are the real ones.
"""

import asyncio
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from bench.store.rounds import percentile, say
from moonpool.clock import RealClock
from moonpool.kv import BlockKey, pack_keys
from moonpool.kv.checksum import CHECKSUM_BYTES
from moonpool.messages import TenantId
from moonpool.messages.codec import decode, encode
from moonpool.messages.ids import OwnerId
from moonpool.messages.store import (
    GetEndRequest,
    GetStartRequest,
    PutEndItem,
    PutEndRequest,
    PutItem,
    PutStartRequest,
)
from moonpool.runtime.kv_log import KvLog
from moonpool.settings import StoreSettings
from moonpool.transfer import TransferEngine
from services.store.checking import Checker
from services.store.collecting import settle_for_good
from services.store.node import StoreNode
from services.store.objects import StoredObject
from services.store.shell import make_core

TENANT = TenantId("public")
BLOCK_BYTES = 1 << 20
CHUNK_BYTES = 64 << 10
BATCH = 64
PROBE_S = 0.001
FLUSH_S = 0.02
RATE_BYTES_S = 5.5e9
SUMS = bytes(BLOCK_BYTES // CHUNK_BYTES * CHECKSUM_BYTES)


@dataclass
class Lag:
    """How late the loop came back, and how much processor time it had used since: what is late and
    did not work was not let by the system."""

    late_s: list[float]
    busy_s: list[float]

    async def probe(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            due_s, worked_s = loop.time() + PROBE_S, time.thread_time()
            await asyncio.sleep(PROBE_S)
            self.late_s.append(loop.time() - due_s)
            self.busy_s.append(time.thread_time() - worked_s)


class _Trusting(Checker):
    """No bytes were written, so there is nothing to compare."""

    async def are_sound(self, objects: Sequence[tuple[StoredObject, bytes]]) -> list[bool]:
        await asyncio.sleep(0)
        return [True] * len(objects)


async def churn(blocks: int, seconds: float) -> dict[str, Any]:
    """Fills a tier of `blocks`, then churns it for a while."""
    say(f"churn of {RATE_BYTES_S / 1e9:g} GB/s on a node of {blocks} blocks")
    settings = StoreSettings(dram_bytes=blocks * BLOCK_BYTES)
    core = make_core(settings)
    log = KvLog(OwnerId("bench"), "1", {"dram": core.live_keys})
    with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
        transfer = await TransferEngine.start("bench-churn", host_id="h", run_dir=folder)
        try:
            region = transfer.allocate(settings.dram_bytes)

            def on_changes(tier: str, stored: list[BlockKey], removed: list[BlockKey]) -> None:
                log.stored(tier, stored)
                log.removed(tier, removed)

            node = StoreNode(core, region, RealClock(), on_changes, 1 << 20)
            node._checker = _Trusting(region.view)
            settle_for_good()
            try:
                return await _measure(node, log, seconds)
            finally:
                node.close()
        finally:
            await transfer.close()


async def _measure(node: StoreNode, log: KvLog, seconds: float) -> dict[str, Any]:
    keys: deque[list[BlockKey]] = deque(maxlen=2048)
    rng = random.Random(1)

    async def batch() -> None:
        keys.append([BlockKey(rng.randbytes(16)) for _ in range(BATCH)])
        await _put(node, keys[-1])
        await _get(node, rng.choice(keys))

    while not node.core.residents.evictions:
        await batch()
        if log.pending_keys > 4096:
            log.take()
    lag = Lag([], [])
    loop = asyncio.get_running_loop()
    tasks = [
        asyncio.create_task(lag.probe()),
        asyncio.create_task(node.keep()),
        asyncio.create_task(_flush(log)),
    ]
    try:
        began_s, batches = loop.time(), 0
        while (now_s := loop.time()) - began_s < seconds:
            due_s = began_s + batches * BATCH * BLOCK_BYTES / RATE_BYTES_S
            await asyncio.sleep(max(0.0, due_s - now_s))
            await batch()
            batches += 1
        took_s = loop.time() - began_s
    finally:
        for task in tasks:
            task.cancel()
    stored = batches * BATCH
    return {
        "loop_stall_ms_max": round(max(lag.late_s) * 1e3, 2),
        "loop_busy_ms_max": round(max(lag.busy_s) * 1e3, 2),
        "loop_stall_ms_p99": round(percentile(lag.late_s, 0.99) * 1e3, 2),
        "churn_gb_s": round(stored * BLOCK_BYTES / took_s / 1e9, 2),
        "churn_blocks": node.core.residents.live,
        "churn_evictions": node.core.residents.evictions,
    }


async def _flush(log: KvLog) -> NoReturn:
    """As the publisher of events does, up to the bus."""
    while True:
        await asyncio.sleep(FLUSH_S)
        for message in log.take():
            encode(message)


async def _put(node: StoreNode, keys: Sequence[BlockKey]) -> None:
    wants = [PutItem(key, BLOCK_BYTES, CHUNK_BYTES) for key in keys]
    start = await _ask(node.put_start, PutStartRequest(TENANT, wants))
    items = [
        PutEndItem(key, slot.generation, SUMS)
        for key, slot in zip(keys, start.slots, strict=True)
        if slot.status == "ok"
    ]
    if items:
        await _ask(node.put_end, PutEndRequest(start.put, items))


async def _get(node: StoreNode, keys: Sequence[BlockKey]) -> None:
    reply = await _ask(node.get_start, GetStartRequest(TENANT, pack_keys(keys)))
    if reply.lease:
        await _ask(node.get_end, GetEndRequest(reply.lease))


async def _ask(verb: Callable[..., Any], request: Any) -> Any:
    """As it comes from the bus and goes back."""
    reply = await verb(decode(encode(request), type(request)))
    encode(reply)
    return reply
