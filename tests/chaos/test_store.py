"""Store nodes that are killed, stopped, cut off, out of disk and with damaged files: what was
acknowledged as durable is all there afterwards, and no wrong byte is ever read."""

import asyncio
import contextlib
import random
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from moonpool.bus import RequestTimeout
from moonpool.client import StoreClient
from moonpool.client.node_calls import TIMEOUT_S
from moonpool.messages import MoonpoolError, PeerError
from tests.support.block_hand import SIZE, BlockHand
from tests.support.faulty_proxy import FaultyProxy
from tests.support.nats_server import NatsServer
from tests.support.s3_server import S3Server
from tests.support.store_nodes import NodeProcess
from tests.support.until import until

pytestmark = pytest.mark.slow

DRAM_BYTES, NVME_BYTES = 24 << 20, 256 << 20
PAUSE_S = 15.0


def with_nvme(folder: Path) -> dict[str, object]:
    return {"dram_bytes": DRAM_BYTES, "nvme_dir": str(folder), "nvme_bytes": NVME_BYTES}


@asynccontextmanager
async def hand_on(url: str, *nodes: str) -> AsyncIterator[BlockHand]:
    async with StoreClient.connect(url, nodes=list(nodes)) as store:
        yield BlockHand(store)


async def serving(node: NodeProcess) -> None:
    await until(lambda: "serving" in node.lines(), 20.0)


def has_more_than(some: set[int], count: int) -> bool:
    return len(some) > count


async def read_all(hand: BlockHand, node: str, numbers: set[int], within_s: float = 20.0) -> None:
    """Every one of them, sooner or later."""
    left = set(numbers)
    ends_s = time.monotonic() + within_s
    while left and time.monotonic() < ends_s:
        left -= await hand.get(node, left)
    assert not left, f"{len(left)} of {len(numbers)} are gone"


async def test_durable_puts_survive_kill_9_at_any_moment(tmp_path: Path) -> None:
    choose, acknowledged, number = random.Random(3), set[int](), 0
    with NatsServer(jetstream=False) as server:
        for _ in range(3):
            with NodeProcess(server.url, "node-1", **with_nvme(tmp_path)) as node:
                await serving(node)
                async with hand_on(server.url, "node-1") as hand:
                    await read_all(hand, "node-1", acknowledged)

                    async def write() -> None:
                        nonlocal number
                        while True:
                            some = range(number, number + 8)
                            number += 8
                            acknowledged.update(await hand.put("node-1", some, durable=True))

                    work = asyncio.create_task(write())
                    enough = len(acknowledged) + 8
                    await until(partial(has_more_than, acknowledged, enough), 20.0)
                    await asyncio.sleep(choose.uniform(0.0, 0.7))
                    node.kill()
                    work.cancel()
                    with contextlib.suppress(asyncio.CancelledError, MoonpoolError):
                        await work
        with NodeProcess(server.url, "node-1", **with_nvme(tmp_path)) as node:
            await serving(node)
            async with hand_on(server.url, "node-1") as hand:
                await read_all(hand, "node-1", acknowledged)


async def test_dram_that_is_kept_is_never_torn_after_kill_9(tmp_path: Path) -> None:
    given = {"dram_bytes": DRAM_BYTES, "dram_keep_dir": str(tmp_path)}
    with NatsServer(jetstream=False) as server:
        with NodeProcess(server.url, "node-1", **given) as node:
            await serving(node)
            async with hand_on(server.url, "node-1") as hand:
                assert len(await hand.put("node-1", range(40))) == 40
            assert node.stop() == 0
        with NodeProcess(server.url, "node-1", **given) as node:
            await until(lambda: "dram restored" in node.lines(), 20.0)
            async with hand_on(server.url, "node-1") as hand:
                assert await hand.get("node-1", range(40)) == set(range(40))
                work = asyncio.create_task(hand.put("node-1", range(100, 160)))
                await asyncio.sleep(0)
                node.kill()  # in the middle of writes
                await work
        with NodeProcess(server.url, "node-1", **given) as node:
            await serving(node)
            async with hand_on(server.url, "node-1") as hand:
                assert await hand.get("node-1", [*range(40), *range(100, 160)]) == set()
                assert len(await hand.put("node-1", range(8))) == 8


async def test_a_node_stopped_for_15_s_keeps_its_entries_and_costs_others_nothing() -> None:
    with (
        NatsServer() as server,
        NodeProcess(server.url, "a", dram_bytes=DRAM_BYTES) as a,
        NodeProcess(server.url, "b", dram_bytes=DRAM_BYTES) as b,
    ):
        await serving(a)
        await serving(b)
        async with (
            StoreClient.connect(server.url, timeout_s=1.0) as store,
            hand_on(server.url, "a", "b") as hand,
        ):
            await until(lambda: len(store.nodes()) == 2)
            assert len(await hand.put("a", range(40))) == 40
            assert len(await hand.put("b", range(40, 80))) == 40
            a.process.send_signal(signal.SIGSTOP)
            try:
                ends_s = time.monotonic() + PAUSE_S
                await until(lambda: store.nodes() == ["b"], 10.0)  # suspect, not dead
                rounds = 0
                while time.monotonic() < ends_s:
                    assert await hand.get("b", range(40, 80)) == set(range(40, 80))
                    rounds += 1
                    await asyncio.sleep(0.1)
            finally:
                a.process.send_signal(signal.SIGCONT)
            assert rounds > 10  # nobody else waited for it
            await until(lambda: len(store.nodes()) == 2, 10.0)
            assert await hand.get("a", range(40)) == set(range(40))


async def view(store: StoreClient, name: str) -> bytes | None:
    async with store.view(name) as seen:
        return None if seen is None else bytes(seen)


@pytest.mark.parametrize("lines", [True, False])
async def test_readers_give_a_stopped_node_up_once_and_use_it_again_when_it_goes_on(
    lines: bool,
) -> None:
    with (
        NatsServer(jetstream=False) as server,
        NodeProcess(server.url, "a", dram_bytes=64 << 20) as a,
        NodeProcess(server.url, "b", dram_bytes=64 << 20) as b,
    ):
        await serving(a)
        await serving(b)
        connecting = StoreClient.connect(server.url, lines=lines, stripe_bytes=64 << 10)
        async with connecting as store:
            await until(lambda: len(store.nodes()) == 2)
            values = {f"v{n}": bytes([n]) * (1000 + 50_000 * (n % 2)) for n in range(40)}
            assert all((await store.put_many(values, replicas=2)).values())
            at_a = [name for name in values if store.home(name) == "a"]
            lonely = next(f"only {n}" for n in range(60) if store.home(f"only {n}") == "a")
            await store.put(lonely, b"one copy")
            striped = next(f"large {n}" for n in range(60) if store.home(f"large {n}") == "b")
            await store.put(striped, bytes(400_000))  # on both nodes, and each stripe on one
            asks: list[tuple[Callable[[str], Awaitable[object]], Callable[[str], object]]] = [
                (store.get, values.__getitem__),
                (store.exists, lambda name: True),
                (store.size, lambda name: len(values[name])),
                (lambda name: view(store, name), values.__getitem__),
            ]
            for ask, is_right in asks:
                await store.get_many(values)  # there are lines to both
                a.process.send_signal(signal.SIGSTOP)
                try:
                    began_s = time.monotonic()
                    for name in at_a:
                        assert await ask(name) == is_right(name)
                    assert await store.get(lonely) is None
                    for _ in range(5):
                        with pytest.raises(PeerError):  # it may be there, and nobody says so
                            await store.get(striped)
                    assert not await store.exists(striped)
                    once_s = time.monotonic() - began_s
                    assert once_s < TIMEOUT_S / 2  # all of them together; nobody sat it out
                finally:
                    a.process.send_signal(signal.SIGCONT)
                await until(lambda: len(store.nodes()) == 2)
                assert await store.get(lonely) == b"one copy"
                assert await store.get(striped) == bytes(400_000)
            a.process.send_signal(signal.SIGSTOP)
            try:
                began_s = time.monotonic()
                with pytest.raises(RequestTimeout):
                    await store.get(lonely)
                assert time.monotonic() - began_s < TIMEOUT_S / 2
            finally:
                a.process.send_signal(signal.SIGCONT)
            await until(lambda: len(store.nodes()) == 2)
            got = await store.get_many([*values, lonely])
            assert {n: r.unwrap() for n, r in got.items()} == {**values, lonely: b"one copy"}


async def test_wanted_copies_are_made_again_after_kill_9() -> None:
    with (
        NatsServer() as server,
        NodeProcess(server.url, "a", dram_bytes=DRAM_BYTES) as a,
        NodeProcess(server.url, "b", dram_bytes=DRAM_BYTES) as b,
        NodeProcess(server.url, "c", dram_bytes=DRAM_BYTES) as c,
    ):
        for node in (a, b, c):
            await serving(node)
        async with hand_on(server.url, "a", "b", "c") as hand:

            async def are_two(nodes: str) -> bool:
                held = [await hand.get(node, range(12)) for node in nodes]
                return all(sum(n in each for each in held) >= 2 for n in range(12))

            assert len(await hand.put("a", range(12), replicas=2)) == 12
            await until(partial(are_two, "abc"), 20.0)
            a.kill()
            await until(partial(are_two, "bc"), 30.0)


async def test_a_node_cut_from_nats_comes_back_with_all_it_holds(tmp_path: Path) -> None:
    with NatsServer() as server:
        async with FaultyProxy(server.port) as proxy:
            through = f"nats://127.0.0.1:{proxy.port}"
            with NodeProcess(through, "node-1", **with_nvme(tmp_path)) as node:
                await serving(node)
                async with hand_on(server.url, "node-1") as hand:
                    durable = await hand.put("node-1", range(40), durable=True)
                    plain = await hand.put("node-1", range(100, 120))
                    assert (len(durable), len(plain)) == (40, 20)
                    proxy.refusing = True
                    proxy.cut()
                    assert await hand.get("node-1", range(40)) == set()
                    proxy.heal()

                    async def is_back() -> bool:
                        return bool(await hand.get("node-1", [0]))

                    await until(is_back, 20.0)
                    await read_all(hand, "node-1", durable | plain)
                    assert len(await hand.put("node-1", range(200, 208), durable=True)) == 8


async def test_a_full_disk_stops_durability_and_nothing_else(tmp_path: Path) -> None:
    with NatsServer(jetstream=False) as server:
        with NodeProcess(server.url, "node-1", **with_nvme(tmp_path)) as node:
            await serving(node)
            async with hand_on(server.url, "node-1") as hand:
                durable = await hand.put("node-1", range(16), durable=True)
                assert len(durable) == 16
                index = tmp_path / "node-1" / "index.dat"
                no_more = index.stat().st_size
                # The segment has its room; the index grows with each record, and now cannot.
                resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (no_more, no_more))
                late = await hand.put("node-1", range(100, 108), durable=True)
                assert late == set()
                assert await hand.get("node-1", [*range(16), *range(100, 108)]) >= set(
                    range(100, 108)
                )
                node.kill()
        with NodeProcess(server.url, "node-1", **with_nvme(tmp_path)) as node:
            await serving(node)
            async with hand_on(server.url, "node-1") as hand:
                await read_all(hand, "node-1", durable)


async def test_flipped_bits_in_the_segment_file_are_misses(tmp_path: Path) -> None:
    choose = random.Random(9)
    with NatsServer(jetstream=False) as server:
        with NodeProcess(server.url, "node-1", **with_nvme(tmp_path)) as node:
            await serving(node)
            async with hand_on(server.url, "node-1") as hand:
                durable = await hand.put("node-1", range(80), durable=True)
                node.kill()
        with (tmp_path / "node-1" / "segment.dat").open("r+b") as file:
            for _ in range(25):
                at = choose.randrange(80 * SIZE)
                file.seek(at)
                (byte,) = file.read(1)
                file.seek(at)
                file.write(bytes([byte ^ (1 << choose.randrange(8))]))
        with NodeProcess(server.url, "node-1", **with_nvme(tmp_path)) as node:
            await serving(node)
            async with hand_on(server.url, "node-1") as hand:
                found: set[int] = set()
                for _ in range(3):
                    found |= await hand.get("node-1", durable - found)
                assert 50 <= len(found) < 80


async def test_durability_in_a_bucket_that_fails_slows_and_goes_down_is_never_a_lie() -> None:
    with S3Server() as s3, NatsServer(jetstream=False) as server:
        async with FaultyProxy(s3.port) as proxy:
            given: dict[str, Any] = {
                "dram_bytes": 64 << 20,
                "oss_endpoint": f"http://127.0.0.1:{proxy.port}",
                "oss_access_key": s3.bucket.access_key,
                "oss_secret_key": s3.bucket.secret_key,
                "oss_bucket": s3.bucket.name,
            }
            durable: set[int] = set()
            with NodeProcess(server.url, "node-1", **given) as node:
                await serving(node)
                async with hand_on(server.url, "node-1") as hand:
                    fresh = count(1000)  # what was put while the bucket was not open yet is there

                    async def takes() -> bool:
                        durable.update(await hand.put("node-1", [next(fresh)], durable=True))
                        return bool(durable)

                    await until(takes, 20.0)
                    durable |= await hand.put("node-1", range(10, 26), durable=True)
                    assert len(durable) >= 17
                    proxy.erring = True
                    durable |= await hand.put("node-1", range(100, 108), durable=True)
                    proxy.heal()
                    proxy.delay_s = 0.02
                    durable |= await hand.put("node-1", range(200, 208), durable=True)
                    proxy.heal()
                    proxy.refusing = True
                    proxy.cut()
                    durable |= await hand.put("node-1", range(300, 308), durable=True)
                    assert await hand.get("node-1", range(300, 308)) == set(range(300, 308))
                    node.kill()
            proxy.heal()
            with NodeProcess(server.url, "node-1", **given) as node:
                await serving(node)
                async with hand_on(server.url, "node-1") as hand:
                    await read_all(hand, "node-1", durable)
