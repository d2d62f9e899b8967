"""What a store node and its client promise, over a node in memory and over a real one: a process on
a real NATS server, its bytes once through shared memory and once through tcp."""

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from moonpool.bus import MemoryBroker
from moonpool.client import (
    BadRange,
    BlockStore,
    CorruptValue,
    LeaseLost,
    NoSpace,
    SessionOver,
    StoreClient,
    ValueTooLarge,
)
from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import CallerError, TenantId
from moonpool.messages.store import PutItem
from moonpool.transfer import GrantRefused, LocalRegion
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess, memory_client, memory_node, segment_of
from tests.support.until import until

DRAM_BYTES = 32 << 20
TENANT = TenantId("public")
LAYERS, LAYER_BYTES = 30, 48 << 10
BLOCK_BYTES = LAYERS * LAYER_BYTES


@dataclass(frozen=True)
class World:
    store: StoreClient
    node: str
    pid: int  # whose memory the node's segment is

    @property
    def blocks(self) -> BlockStore:
        return self.store.blocks

    async def used_bytes(self) -> int:
        return (await self.blocks.stats(self.node)).tiers[0].bytes_used

    async def is_quiet(self) -> bool:
        stats = await self.blocks.stats(self.node)
        return (stats.leases, stats.puts_open, stats.counters["late_puts"]) == (0, 0, 0)

    def allocate(self, size_bytes: int) -> LocalRegion:
        transfer = self.blocks._transfer
        region = transfer.allocate(size_bytes)
        assert isinstance(region, LocalRegion)
        return region


@pytest.fixture(scope="module")
def node_process() -> Iterator[tuple[NatsServer, NodeProcess]]:
    with (
        NatsServer(jetstream=False) as server,
        NodeProcess(server.url, "node-1", dram_bytes=DRAM_BYTES, host_id="here") as node,
    ):
        yield server, node


@pytest.fixture(params=["memory", "shm", "tcp"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with make_world(request) as made:
        await made.store.remove_many(shared_names())
        yield made
        await until(made.is_quiet, saying="leases and puts are given back")


@asynccontextmanager
async def make_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        broker = MemoryBroker()
        async with (
            memory_node(broker, dram_bytes=DRAM_BYTES, host_id="here"),
            memory_client(broker, "node-1") as store,
        ):
            yield World(store, "node-1", os.getpid())
        return
    server, node = request.getfixturevalue("node_process")
    await until(lambda: "serving" in node.lines(), 20.0)
    async with StoreClient.connect(
        server.url, transports=[request.param], host_id="here", nodes=["node-1"]
    ) as store:
        yield World(store, "node-1", node.process.pid)


def shared_names() -> list[str]:
    """Names that tests of one process share."""
    return [f"value-{n}" for n in range(40)]


def make_value(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(f"{size_bytes} {seed}").randbytes(size_bytes)


def make_keys(count: int) -> list[BlockKey]:
    return [BlockKey(os.urandom(16)) for _ in range(count)]


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, (1 << 20) - 8, 1 << 20, (5 << 20) + 3])
async def test_what_was_put_is_what_one_gets(world: World, size_bytes: int) -> None:
    value = make_value(size_bytes)
    assert await world.store.put("value-0", value)
    assert await world.store.get("value-0") == value


async def test_a_miss_is_none_and_a_taken_name_stays_as_it_is(world: World) -> None:
    store = world.store
    assert await store.get("value-0") is None
    assert not await store.exists("value-0")
    assert await store.put("value-0", b"first")
    assert not await store.put("value-0", b"second")
    assert await store.get("value-0") == b"first"
    assert await store.put("value-0", b"third", replace=True)
    assert await store.get("value-0") == b"third"
    assert await store.remove("value-0")
    assert not await store.remove("value-0")
    assert not await store.exists("value-0")


async def test_batches_answer_per_name(world: World) -> None:
    values = {f"value-{n}": make_value(n * 20_000, n) for n in range(40)}
    await world.store.put("value-3", b"there before")
    results = await world.store.put_many(values)
    assert results == {name: name != "value-3" for name in values}
    got = await world.store.get_many([*values, "unknown"])
    assert got["value-3"].value == b"there before"
    assert got["unknown"].unwrap() is None
    assert all(got[n].value == v for n, v in values.items() if n != "value-3")
    assert await world.store.exist_many(["value-1", "unknown"]) == {
        "value-1": True,
        "unknown": False,
    }


async def test_a_value_that_fits_no_segment_is_refused(world: World) -> None:
    with pytest.raises(ValueTooLarge):
        await world.store.put("value-0", bytes(DRAM_BYTES))
    assert await world.store.put("value-0", bytes(DRAM_BYTES // 2))


async def test_old_values_make_room_and_pinned_ones_stay(world: World) -> None:
    store, value = world.store, make_value(4 << 20)
    assert await store.put("value-0", value)
    assert await store.put("value-1", value)
    assert await store.pin("value-0", "hard")
    for n in range(2, 14):
        assert await store.put(f"value-{n}", value)
    assert await store.exists("value-0")
    assert not await store.exists("value-1")
    assert await store.exists("value-13")
    assert await world.used_bytes() <= DRAM_BYTES
    assert await store.pin("value-0", "none")


async def test_blocks_travel_layer_by_layer(world: World) -> None:
    keys, mine = make_keys(3), world.allocate(3 * BLOCK_BYTES)
    mine.view[:] = make_value(3 * BLOCK_BYTES)
    sources = {i: (mine, i * BLOCK_BYTES) for i in range(3)}
    items = [PutItem(key, BLOCK_BYTES, LAYER_BYTES) for key in keys]
    async with await world.blocks.open_put(world.node, TENANT, items) as put:
        assert put.wanted == [0, 1, 2]
        for first in range(0, LAYERS, 10):
            await put.write_chunks(first, first + 10, sources)
        sums = {
            i: chunk_checksums(mine.view[i * BLOCK_BYTES :][:BLOCK_BYTES], LAYER_BYTES)
            for i in range(2)
        }
        assert await put.finish(sums) == ["committed", "committed", "abandoned"]
    theirs = world.allocate(3 * BLOCK_BYTES)
    async with await world.blocks.open_get(world.node, TENANT, keys) as get:
        assert get.hits == [0, 1]
        targets = {i: (theirs, i * BLOCK_BYTES) for i in get.hits}
        for layer in range(LAYERS):
            assert await get.read_chunks(layer, layer + 1, targets) == {}
            end = layer * LAYER_BYTES + LAYER_BYTES
            assert theirs.view[:end] == mine.view[:end]
        assert await get.finish()
    assert theirs.view[: 2 * BLOCK_BYTES] == mine.view[: 2 * BLOCK_BYTES]
    assert bytes(theirs.view[2 * BLOCK_BYTES :]) == bytes(BLOCK_BYTES)


async def test_objects_and_layers_that_are_not_there_are_refused_in_words(world: World) -> None:
    keys, mine = make_keys(2), world.allocate(2 * BLOCK_BYTES)
    items = [PutItem(key, BLOCK_BYTES, LAYER_BYTES) for key in keys]
    async with await world.blocks.open_put(world.node, TENANT, items) as put:
        for first, last, index in [(0, 1, 7), (0, 1, -1), (0, LAYERS + 1, 0), (-1, 1, 0)]:
            with pytest.raises(BadRange):
                await put.write_chunks(first, last, {index: (mine, 0)})
        await put.write_chunks(0, LAYERS, {0: (mine, 0)})
        sums = chunk_checksums(mine.view[:BLOCK_BYTES], LAYER_BYTES)
        assert await put.finish({0: sums}) == ["committed", "abandoned"]
    async with await world.blocks.open_get(world.node, TENANT, keys) as get:
        assert get.hits == [0]
        wrong = [(0, 1, 7), (0, 1, 1), (0, LAYERS + 1, 0), (-1, 1, 0), (LAYERS, 0, 0)]
        for first, last, index in wrong:
            with pytest.raises(BadRange):
                await get.read_chunks(first, last, {index: (mine, 0)})
        assert await get.read_chunks(0, LAYERS, {0: (mine, 0)}) == {}
    assert await world.blocks.remove(world.node, TENANT, keys) == ["removed", "miss"]


async def test_whole_blocks_are_put_in_one_call_and_once(world: World) -> None:
    keys, mine = make_keys(4), world.allocate(4 * BLOCK_BYTES)
    items = [(key, (mine, i * BLOCK_BYTES)) for i, key in enumerate(keys)]
    put = world.blocks.put_blocks
    assert await put(world.node, TENANT, items, BLOCK_BYTES, LAYER_BYTES) == ["committed"] * 4
    assert await put(world.node, TENANT, items, BLOCK_BYTES, LAYER_BYTES) == ["exists"] * 4
    assert await world.blocks.exist(world.node, TENANT, [*keys, *make_keys(1)]) == [True] * 4 + [
        False
    ]
    assert await world.blocks.remove(world.node, TENANT, keys) == ["removed"] * 4


async def test_bytes_that_differ_from_their_checksums_are_never_seen(world: World) -> None:
    keys, mine = make_keys(1), world.allocate(BLOCK_BYTES)
    wrong = chunk_checksums(memoryview(make_value(BLOCK_BYTES)), LAYER_BYTES)
    items = [(keys[0], (mine, 0))]
    got = await world.blocks.put_blocks(
        world.node, TENANT, items, BLOCK_BYTES, LAYER_BYTES, [wrong]
    )
    assert got == ["corrupt"]
    assert await world.blocks.exist(world.node, TENANT, keys) == [False]


async def test_a_flipped_bit_is_found_by_the_reader_and_the_block_is_dropped(world: World) -> None:
    value = make_value(3 << 20, seed=7)
    await world.store.put("value-0", value)
    await world.store.put("value-1", b"a good one")
    with segment_of(world.pid, DRAM_BYTES) as segment:
        at = segment.find(value[2_000_000:2_000_064])
        assert at >= 0
        segment[at] ^= 0x20
    with pytest.raises(CorruptValue):
        await world.store.get("value-0")
    assert await world.store.get("value-0") is None
    assert await world.store.get("value-1") == b"a good one"
    stats = await world.blocks.stats(world.node)
    assert stats.counters["inspections_removed"] >= 1


async def test_a_node_does_not_drop_a_good_block_on_hearsay(world: World) -> None:
    await world.store.put("value-0", b"good")
    key = world.store.key("value-0")
    got = await world.blocks.calls.remove(world.node, TENANT, [key], reason="corrupt")
    assert got == ["intact"]
    assert await world.store.get("value-0") == b"good"


async def test_a_reader_that_dies_holds_its_blocks_only_for_the_lease(world: World) -> None:
    keys, mine = make_keys(1), world.allocate(BLOCK_BYTES)
    items = [(keys[0], (mine, 0))]
    await world.blocks.put_blocks(world.node, TENANT, items, BLOCK_BYTES, LAYER_BYTES)
    get = await world.blocks.open_get(world.node, TENANT, keys, lease_s=0.3)
    assert get.hits == [0]
    assert await world.blocks.remove(world.node, TENANT, keys) == ["leased"]
    used = await world.used_bytes()
    await until(world.is_quiet)
    assert await world.used_bytes() < used
    assert await get.finish() is False


async def test_a_read_that_outlives_its_lease_is_void_unless_it_is_renewed(world: World) -> None:
    keys, mine = make_keys(1), world.allocate(BLOCK_BYTES)
    items = [(keys[0], (mine, 0))]
    await world.blocks.put_blocks(world.node, TENANT, items, BLOCK_BYTES, LAYER_BYTES)
    get = await world.blocks.open_get(world.node, TENANT, keys, lease_s=0.2)
    await get.renew(30.0)
    assert await get.read_all({0: (mine, 0)}) == set()
    assert await get.finish() is True
    with pytest.raises(SessionOver):
        await get.read_all({0: (mine, 0)})
    get = await world.blocks.open_get(world.node, TENANT, keys, lease_s=5.0)
    await world.blocks.remove(world.node, TENANT, keys)
    await world.blocks.put_blocks(world.node, TENANT, items, BLOCK_BYTES, LAYER_BYTES)
    with pytest.raises(LeaseLost):
        await get.renew(5.0)
    await get.finish()


async def test_the_room_of_a_writer_that_dies_comes_back(world: World) -> None:
    before = await world.used_bytes()
    items = [PutItem(key, BLOCK_BYTES, LAYER_BYTES) for key in make_keys(4)]
    put = await world.blocks.open_put(world.node, TENANT, items, ttl_s=0.3)
    mine = world.allocate(BLOCK_BYTES)
    await put.write_chunks(0, LAYERS, {0: (mine, 0)})
    assert await world.used_bytes() > before
    await until(world.is_quiet)
    assert await world.used_bytes() == before
    sums = {0: chunk_checksums(mine.view, LAYER_BYTES)}
    assert await put.finish(sums) == ["expired"] * 4
    with pytest.raises(SessionOver):
        await put.write_chunks(0, LAYERS, {0: (mine, 0)})


async def test_a_writer_is_locked_out_once_its_put_has_ended(world: World) -> None:
    items = [PutItem(key, BLOCK_BYTES, LAYER_BYTES) for key in make_keys(1)]
    put = await world.blocks.open_put(world.node, TENANT, items)
    mine = world.allocate(BLOCK_BYTES)
    await put.write_chunks(0, LAYERS, {0: (mine, 0)})
    assert await put.finish({0: chunk_checksums(mine.view, LAYER_BYTES)}) == ["committed"]
    put._over = False
    mine.view[:] = make_value(BLOCK_BYTES)
    with pytest.raises(GrantRefused):
        await put.write_chunks(0, LAYERS, {0: (mine, 0)})


async def test_no_room_is_told_while_everything_is_being_read(world: World) -> None:
    await world.store.put_many({name: make_value(700 << 10) for name in shared_names()})
    keys = [world.store.key(name) for name in shared_names()]
    async with await world.blocks.open_get(world.node, TENANT, keys) as get:
        assert len(get.hits) > 30
        with pytest.raises(NoSpace):
            await world.store.put("large", bytes(10 << 20))
    assert await world.store.put("large", bytes(10 << 20))
    assert await world.store.remove("large")


async def test_nonsense_is_refused_in_words(world: World) -> None:
    calls = world.blocks.calls
    with pytest.raises(CallerError, match="key"):
        await calls.put_start(world.node, TENANT, [PutItem(b"short", 64, 64)], 1.0)
    with pytest.raises(CallerError, match="whole chunks"):
        await calls.put_start(world.node, TENANT, [PutItem(bytes(16), 65, 64)], 1.0)
    with pytest.raises(CallerError, match="16-byte keys"):
        await calls.get_start(world.node, TENANT, [BlockKey(b"short")], 1.0)
    with pytest.raises(CallerError, match="tenant"):
        await calls.get_start(world.node, TenantId("a b"), make_keys(1), 1.0)
    assert await calls.get_end(world.node, 999_999) is False
