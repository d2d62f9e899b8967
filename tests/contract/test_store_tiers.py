"""A node with lower tiers, as its readers and writers see it: values that left dram come back."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.client import StoreClient
from moonpool.kv import unpack_keys
from moonpool.messages import Subjects
from moonpool.messages.codec import decode, encode
from moonpool.messages.events import KvEvents, SnapshotPage, SnapshotRequest
from moonpool.messages.load import LoadReport
from moonpool.messages.store import TierStats
from services.store.node import StoreNode
from tests.support.faulty_proxy import FaultyProxy
from tests.support.s3_server import S3Server
from tests.support.store_nodes import memory_client, memory_node
from tests.support.until import until

DRAM_BYTES, NVME_BYTES = 8 << 20, 64 << 20
VALUE_BYTES = 700 << 10
Start = Callable[..., AbstractAsyncContextManager[tuple[StoreNode, StoreClient]]]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@dataclass(frozen=True)
class World:
    """Nodes over the same lower tiers, one after the other."""

    tiers: tuple[str, ...]
    start: Start


def make_start(**lower: object) -> Start:
    @asynccontextmanager
    async def start(**more: object) -> AsyncIterator[tuple[StoreNode, StoreClient]]:
        broker = more.pop("broker", None) or MemoryBroker()
        assert isinstance(broker, MemoryBroker)
        given = {"dram_bytes": DRAM_BYTES, "host_id": "here", **lower, **more}
        async with memory_node(broker, **given) as node, memory_client(broker, "node-1") as client:
            yield node, client

    return start


def oss_settings(s3: S3Server, mesh: str, port: int = 0) -> dict[str, object]:
    endpoint = f"http://127.0.0.1:{port}" if port else s3.bucket.endpoint
    return {
        "oss_endpoint": endpoint,
        "oss_access_key": s3.bucket.access_key,
        "oss_secret_key": s3.bucket.secret_key,
        "oss_bucket": s3.bucket.name,
        "mesh": mesh,
    }


@pytest.fixture(
    params=["nvme", pytest.param("oss", marks=pytest.mark.slow),
            pytest.param("both", marks=pytest.mark.slow)]
)  # fmt: skip
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    lower: dict[str, object] = {}
    if request.param in ("nvme", "both"):
        size_bytes = NVME_BYTES if request.param == "nvme" else 10 << 20
        lower |= {"nvme_dir": str(tmp_path), "nvme_bytes": size_bytes}
    if request.param in ("oss", "both"):
        lower |= oss_settings(request.getfixturevalue("s3"), "mp")
    tiers = {"nvme": ("nvme",), "oss": ("oss",), "both": ("nvme", "oss")}[request.param]
    return World(tiers, make_start(**lower))


def make_values(count: int, salt: str = "") -> dict[str, bytes]:
    salt = salt or os.urandom(4).hex()
    return {
        f"{salt}-{n}": random.Random(f"{salt} {n}").randbytes(VALUE_BYTES) for n in range(count)
    }


def tier_of(node: StoreNode, name: str) -> TierStats:
    return next(tier for tier in node.core.stats().tiers if tier.tier == name)


async def fill(node: StoreNode, client: StoreClient, values: dict[str, bytes]) -> None:
    """Puts and uses them, so that they are worth keeping, no faster than they can sink."""
    for name, value in values.items():
        assert await client.put(name, value)
        assert await client.get(name) == value
        await until(lambda: is_calm(node), 30.0)


async def is_calm(node: StoreNode) -> bool:
    stats = node.core.ladder.stats()
    return stats["loading"] == stats["demoting"] == 0


async def get_all(client: StoreClient, values: dict[str, bytes]) -> dict[str, bytes]:
    """What is there; anything but a value or a miss fails the test."""
    found = {}
    for name, result in (await client.get_many(values)).items():
        value = result.unwrap()
        if value is not None:
            assert value == values[name]
            found[name] = value
    return found


async def sink(node: StoreNode, client: StoreClient, values: dict[str, bytes]) -> set[str]:
    """Fills until most have left dram; names of those that can be got from below."""
    await fill(node, client, values)
    await until(lambda: is_calm(node))
    below = {key for shelf in node.core.ladder.shelves for key in shelf.readable_keys()}
    return {name for name in values if client.key(name) in below}


async def test_values_larger_than_dram_come_back_and_survive_a_restart(world: World) -> None:
    values = make_values(30)
    async with world.start() as (node, client):
        await until(lambda: all(s.online for s in node.core.ladder.shelves))
        below = await sink(node, client, values)
        assert len(below) >= 15
        assert await get_all(client, values) != {}
        assert below <= (await get_all(client, values)).keys()
        node.core.check()
        await until(lambda: is_calm(node))
    async with world.start() as (node, client):
        await until(lambda: len(node.core.ladder.shelves[-1].readable_keys()) > 0)
        await until(lambda: all(node.core.ladder.find(client.key(n)) for n in below))
        assert tier_of(node, "dram").blocks == 0
        assert all((await client.exist_many(values)).values())  # dram's went down at the end
        assert await get_all(client, values) == values
        node.core.check()
        await client.remove_many(values)


async def test_what_was_removed_or_replaced_stays_so_over_a_restart(world: World) -> None:
    values = make_values(20)
    async with world.start() as (node, client):
        await until(lambda: all(s.online for s in node.core.ladder.shelves))
        below = sorted(await sink(node, client, values))
        gone, replaced = below[0], below[1]
        assert await client.remove(gone)
        assert not await client.exists(gone)
        assert await client.put(replaced, b"new", replace=True)
        assert await client.get(replaced) == b"new"
    async with world.start() as (node, client):
        await until(lambda: all(node.core.ladder.find(client.key(n)) for n in below[2:]))
        assert await client.get(gone) is None
        found: list[bytes | None] = []  # a tier that takes its time is a miss, never the old value

        async def is_back() -> bool:
            found.append(await client.get(replaced))
            return found[-1] is not None

        await until(is_back)
        assert found[-1] == b"new"
        assert not await client.put(below[2], b"taken")
        await client.remove_many(values)
        await until(lambda: all(not s.records and not s.gone for s in node.core.ladder.shelves))


async def test_a_burst_larger_than_the_headroom_loses_nothing(tmp_path: Path) -> None:
    choose = random.Random(3)
    sizes = [700 << 10, 300 << 10, 1_300_000, 50_000]
    values = {f"burst {n}": choose.randbytes(choose.choice(sizes)) for n in range(50)}
    start = make_start(nvme_dir=str(tmp_path), nvme_bytes=NVME_BYTES, demote_after_uses=1)
    async with start() as (node, client):
        for name, value in values.items():
            assert await client.put(name, value)
        assert len(await get_all(client, values)) == len(values)
        await until(lambda: is_calm(node))
        node.core.check()


async def test_what_was_used_once_is_not_worth_a_write(world: World) -> None:
    values = make_values(25)
    async with world.start() as (node, client):
        await until(lambda: all(s.online for s in node.core.ladder.shelves))
        before = {s.name: len(s.readable_keys()) for s in node.core.ladder.shelves}
        for name, value in values.items():
            await client.put(name, value)
        await until(lambda: tier_of(node, "dram").bytes_used <= DRAM_BYTES * 0.8)
        assert {s.name: len(s.readable_keys()) for s in node.core.ladder.shelves} == before
        await client.remove_many(values)


async def test_what_lies_where_is_told_and_a_snapshot_agrees(tmp_path: Path) -> None:
    broker, subjects = MemoryBroker(), Subjects()
    bus, told, loads = MemoryBus(broker), set[bytes](), list[LoadReport]()

    async def hear(subject: str, payload: bytes) -> None:
        if subject == subjects.load("node-1"):
            loads.append(decode(payload, LoadReport))
            return
        events = decode(payload, KvEvents)
        if events.tier == "nvme":
            told.update(unpack_keys(events.stored))
            told.difference_update(unpack_keys(events.removed))

    await bus.subscribe(subjects.kv_events("node-1"), hear)
    await bus.subscribe(subjects.load("node-1"), hear)
    start = make_start(nvme_dir=str(tmp_path), nvme_bytes=NVME_BYTES)

    async def snapshot() -> set[bytes]:
        request = encode(SnapshotRequest())
        page = decode(await bus.request(subjects.kv_snapshot("node-1"), request, 5.0), SnapshotPage)
        return set(unpack_keys(page.tiers.get("nvme", b"")))

    async with start(broker=broker) as (node, client):
        values = make_values(20)
        await sink(node, client, values)
        (shelf,) = node.core.ladder.shelves
        await until(lambda: told == set(shelf.readable_keys()) != set())
        assert await snapshot() == told
        await until(lambda: bool(loads))
        await until(lambda: loads[-1].tiers["nvme"] == (shelf.tier.bytes_used, NVME_BYTES))
    async with start(broker=broker) as (node, _):
        assert await snapshot() == told
    await bus.close()


async def test_damage_on_disk_is_a_miss_and_never_a_wrong_byte(tmp_path: Path) -> None:
    start, values = make_start(nvme_dir=str(tmp_path), nvme_bytes=NVME_BYTES), make_values(20)
    async with start() as (node, client):
        await sink(node, client, values)
    choose = random.Random(5)
    with (tmp_path / "node-1" / "segment.dat").open("r+b") as file:
        for _ in range(60):
            file.seek(choose.randrange(len(values) * VALUE_BYTES))
            file.write(bytes([choose.randrange(256)]))
    async with start() as (node, client):
        (shelf,) = node.core.ladder.shelves
        assert len(shelf.readable_keys()) == len(values)
        found = await get_all(client, values)
        assert 0 < len(values) - len(found) == shelf.lost
        assert len(shelf.readable_keys()) == len(found)
        node.core.check()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nvme_dir": "/proc/no-such-place"}, "No such file"),
        ({"nvme_dir": "/etc/hostname"}, "Not a directory"),
        ({"nvme_bytes": 1 << 50}, "the disk is full"),
    ],
)
async def test_a_node_whose_folder_cannot_be_used_says_so_and_serves_from_dram(
    tmp_path: Path, settings: dict[str, object], says: str
) -> None:
    start = make_start(**{"nvme_dir": str(tmp_path), "nvme_bytes": NVME_BYTES, **settings})
    async with start() as (node, client):
        assert says in tier_of(node, "nvme").health
        values = make_values(15)
        await fill(node, client, values)
        assert len(await get_all(client, values)) >= 8
        assert tier_of(node, "nvme").blocks == 0


@pytest.mark.slow
async def test_a_bucket_that_fails_is_left_alone_and_comes_back(s3: S3Server) -> None:
    async with FaultyProxy(s3.port) as proxy:
        start = make_start(**oss_settings(s3, "mp", proxy.port))
        values = make_values(20)
        async with start() as (node, client):
            (shelf,) = node.core.ladder.shelves
            await until(lambda: shelf.online)
            below = await sink(node, client, values)
            assert len(below) >= 8
            for trouble in ("erring", "refusing"):
                setattr(proxy, trouble, True)
                proxy.cut()
                for name in below:  # dram serves on, what is below is late or a miss
                    (result,) = (await client.get_many([name])).values()
                    assert result.value in (None, values[name])
                    if not shelf.online:
                        break
                await until(lambda: not shelf.online, 30.0)
                assert shelf.health != "ok"
                assert shelf.readable_keys() == []
                await until(lambda: is_calm(node), 10.0)  # nothing waits for what is away
                assert await client.put(f"meanwhile {trouble}", b"1")
                assert await client.get(f"meanwhile {trouble}") == b"1"
                proxy.heal()
                await until(lambda: shelf.online, 30.0)
            found = await get_all(client, values)
            assert below <= found.keys()
            await client.remove_many(values)


@pytest.mark.slow
async def test_slow_and_corrupting_buckets_cost_time_and_never_a_wrong_byte(s3: S3Server) -> None:
    async with FaultyProxy(s3.port) as proxy:
        start = make_start(**oss_settings(s3, "mp", proxy.port))
        values = make_values(20)
        async with start() as (node, client):
            (shelf,) = node.core.ladder.shelves
            await until(lambda: shelf.online)
            below = sorted(await sink(node, client, values))
            proxy.delay_s = 1.0
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            (result,) = (await client.get_many([below[0]])).values()
            assert result.value in (None, values[below[0]])
            assert loop.time() - began_s < 5.0
            proxy.heal()
            proxy.corrupting = True
            proxy.cut()
            for name in below[1:5]:
                (result,) = (await client.get_many([name])).values()
                assert result.value in (None, values[name])
            proxy.heal()
            await until(lambda: shelf.online, 30.0)
            await until(lambda: is_calm(node), 30.0)
            assert set(below[5:]) <= (await get_all(client, values)).keys()
            await client.remove_many(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"oss_bucket": "nowhere"}, "no such bucket"),
        ({"oss_secret_key": "wrong"}, "wrong credentials"),
        ({"oss_endpoint": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    ],
)
async def test_a_node_whose_bucket_cannot_be_used_says_so_and_serves_from_dram(
    s3: S3Server, settings: dict[str, object], says: str
) -> None:
    start = make_start(**{**oss_settings(s3, "mp"), **settings})
    async with start() as (node, client):
        await until(lambda: says in tier_of(node, "oss").health)
        values = make_values(15)
        await fill(node, client, values)
        assert len(await get_all(client, values)) >= 8
