"""A node's dram over a clean restart: kept at the stop, brought back while the next life serves."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.keeping import KeepFolder, Kept, batches
from services.store.memory import available_bytes
from services.store.node import StoreNode
from services.store.objects import State, StoredObject

AT_ONCE = 4  # batches that are being read
KEEP_MAX_S = 12.0  # of writing at the stop

log = logging.getLogger(__name__)


async def restore(node: StoreNode, folder: KeepFolder) -> None:
    """Brings back what fits and is whole, batch by batch; each is announced as it comes. A put
    that was faster wins."""
    began_s = time.monotonic()
    kept: list[Kept] = []
    try:
        await asyncio.to_thread(folder.require)
    except OSError as error:
        log.warning("dram will not be kept when this node stops: %s", error)
    try:
        kept = await asyncio.to_thread(folder.take)
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for batch in batches(kept):
                await places.acquire()
                work = group.create_task(_bring_back(node, folder, batch))
                work.add_done_callback(lambda _: places.release())
    except* OSError as failed:
        log.warning("dram is not restored whole: %s", failed.exceptions[0])
    folder.clear()
    if kept:
        restored, lost = (node.core.counters[f"restored_{name}"] for name in ("sound", "lost"))
        facts = {"blocks": restored, "lost": lost, "seconds": round(time.monotonic() - began_s, 3)}
        log.info("dram restored", extra=facts)


async def keep(node: StoreNode, folder: KeepFolder) -> None:
    """At the stop, when nobody writes any more."""
    view = node.region.view
    try:
        room_bytes = min(folder.room_bytes(), available_bytes() * 9 // 10)
        until_s = time.monotonic() + KEEP_MAX_S
        count = await asyncio.to_thread(folder.write, _worth(node, view), room_bytes, until_s)
    except OSError as error:
        log.warning("dram is not kept: %s", error)
        return
    log.info("dram kept", extra={"blocks": count, "of": node.core.residents.live})


def _worth(node: StoreNode, view: memoryview) -> Iterator[tuple[Kept, memoryview]]:
    """What lies nowhere else first."""
    live = [o for o in node.core.residents.objects.values() if o.state is State.LIVE]
    live.sort(key=lambda obj: node.core.ladder.is_below(obj.key))
    for obj in live:
        facts = Kept(obj.key, obj.tenant, obj.size_bytes, obj.chunk_bytes, obj.checksums)
        yield facts, view[obj.place : obj.place + obj.size_bytes]


async def _bring_back(node: StoreNode, folder: KeepFolder, batch: list[Kept]) -> None:
    core, view = node.core, node.region.view
    begun: list[tuple[Kept, StoredObject]] = []
    for kept in batch:
        obj = core.reborn.begin(
            BlockKey(kept.key), TenantId(kept.tenant), kept.size_bytes, kept.chunk_bytes
        )
        if obj is not None:
            begun.append((kept, obj))
    sound = [False] * len(begun)
    try:
        into = [(kept, view[o.place : o.place + o.size_bytes]) for kept, o in begun]
        # Shielded: a thread that fills places must be over before they are anybody else's.
        sound = await _finish(asyncio.to_thread(folder.read, into))
    finally:
        for (kept, obj), is_sound in zip(begun, sound, strict=True):
            core.reborn.finish(obj, kept.checksums if is_sound else b"", node.now())
        node.settle()


async def _finish(work: Coroutine[Any, Any, list[bool]]) -> list[bool]:
    """Its result; when cancelled, only after it is over."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
