"""A node that is killed in the middle of moving blocks down loses nothing that it said was there.

Method: a real process on a real NATS server; values are put and used as fast as it takes them, and
at a random moment it is killed. What it had announced in its nvme tier must be readable in its
next life, byte for byte, and nothing else may ever be read.
"""

import asyncio
import contextlib
import random
import time
from pathlib import Path

import pytest

from moonpool.bus import NatsBus
from moonpool.client import StoreClient
from moonpool.kv import unpack_keys
from moonpool.messages import MoonpoolError
from moonpool.messages.codec import decode
from moonpool.messages.events import KvEvents
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess
from tests.support.until import until

ROUNDS = 3
DRAM_BYTES, NVME_BYTES = 16 << 20, 512 << 20
LIFE_BYTES = 100 << 20  # put in a life: nothing is evicted, for a kill cuts off word of that too

pytestmark = pytest.mark.slow


class Told:
    """Keys that the node said lie in its nvme tier."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    async def __call__(self, subject: str, payload: bytes) -> None:
        events = decode(payload, KvEvents)
        if events.tier == "nvme":
            self.keys |= set(unpack_keys(events.stored))
            self.keys -= set(unpack_keys(events.removed))


def value_of(name: str) -> bytes:
    choose = random.Random(name)
    return choose.randbytes(choose.choice([100, 5000, 64 << 10, 700 << 10, 1_500_000]))


async def keep_writing(store: StoreClient, names: list[str], salt: str) -> None:
    number = put_bytes = 0
    while put_bytes < LIFE_BYTES:
        name = f"{salt}-{number}"
        value = value_of(name)
        number, put_bytes = number + 1, put_bytes + len(value)
        if await store.put(name, value):
            names.append(name)
            await store.get(name)


async def test_what_was_announced_is_there_after_kill_9(tmp_path: Path) -> None:
    settings = {"dram_bytes": DRAM_BYTES, "nvme_dir": str(tmp_path), "nvme_bytes": NVME_BYTES}
    names: list[str] = []
    choose = random.Random(11)
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(NatsServer(jetstream=False))
        bus, told = await NatsBus.connect(server.url), Told()
        stack.push_async_callback(bus.close)
        await bus.subscribe("mp.kv.events.node-1", told)
        for life in range(ROUNDS):
            with NodeProcess(server.url, "node-1", **settings) as node:
                await until_serving(node)
                async with StoreClient.connect(server.url, nodes=["node-1"]) as store:
                    await verify(store, names, told.keys)
                    work = asyncio.create_task(keep_writing(store, names, f"life {life}"))
                    await grow(told, work, choose.uniform(0.5, 1.5))
                    node.kill()
                    work.cancel()
                    with contextlib.suppress(asyncio.CancelledError, MoonpoolError):
                        await work
        with NodeProcess(server.url, "node-1", **settings) as node:
            await until_serving(node)
            async with StoreClient.connect(server.url, nodes=["node-1"]) as store:
                await verify(store, names, told.keys)
                stats = (await store.stats())["node-1"]
                assert stats.counters["promotions_done"] > 10
                assert stats.counters.get("promotions_lost", 0) == 0


async def until_serving(node: NodeProcess) -> None:
    await until(lambda: "serving" in node.lines(), 20.0)


async def grow(told: Told, work: asyncio.Task[None], time_s: float) -> None:
    """Until more was announced and the time is over, or a life has written all it may."""
    end, grown = time.monotonic() + time_s, len(told.keys) + 3

    def is_enough() -> bool:
        return len(told.keys) > grown and (work.done() or time.monotonic() > end)

    await until(is_enough, 20.0)


async def verify(store: StoreClient, names: list[str], durable: set[bytes]) -> None:
    """Everything durable is there; nothing is wrong."""
    wanted = dict.fromkeys(names)
    for start in range(0, len(names), 100):
        for name, result in (await store.get_many(names[start : start + 100])).items():
            wanted[name] = result.unwrap()
    for name, value in wanted.items():
        assert value is None or value == value_of(name)
    lost = [n for n in names if store.key(n) in durable and wanted[n] is None]
    assert not lost, f"{len(lost)} of {len(durable)} announced values are gone"
