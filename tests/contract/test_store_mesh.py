"""What a store over several nodes adds: stripes, copies, tenants, and nodes that fail."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
import pytest

from moonpool.bus import MemoryBroker
from moonpool.client import (
    STRATEGY_NAMES,
    BadRange,
    CorruptValue,
    LastCopy,
    NoSpace,
    StoreClient,
    TargetTooSmall,
    UnknownNode,
)
from services.store.node import StoreNode
from tests.support.store_nodes import memory_client, memory_node
from tests.support.store_worlds import (
    DRAM_BYTES,
    STRIPE_BYTES,
    RealMesh,
    client_of,
    make_value,
    memory_mesh,
    real_mesh,
)
from tests.support.until import until

LARGE = 7 * STRIPE_BYTES + 123
IDS = ["node-1", "node-2", "node-3"]


class Nodes:
    """Three nodes in this process, which can be ended one by one."""

    def __init__(self, broker: MemoryBroker, client: StoreClient) -> None:
        self.broker = broker
        self.client = client
        self.nodes: dict[str, StoreNode] = {}
        self._stacks: dict[str, AsyncExitStack] = {}

    async def start(self, id: str) -> None:
        self._stacks[id] = AsyncExitStack()
        running = memory_node(self.broker, id, dram_bytes=DRAM_BYTES, host_id="here")
        self.nodes[id] = await self._stacks[id].enter_async_context(running)

    async def end(self, id: str) -> None:
        del self.nodes[id]
        await self._stacks.pop(id).aclose()

    async def close(self) -> None:
        for id in list(self._stacks):
            await self.end(id)

    def live(self) -> dict[str, int]:
        """Objects per node."""
        return {id: node.core.residents.live for id, node in self.nodes.items()}

    def find(self, value: bytes) -> tuple[memoryview, int]:
        """Where these bytes lie in some node's segment."""
        for node in self.nodes.values():
            at = bytes(node._segment).find(value)
            if at >= 0:
                return node._segment, at
        raise AssertionError("these bytes are nowhere")


@asynccontextmanager
async def three_nodes(**given: object) -> AsyncIterator[Nodes]:
    broker = MemoryBroker()
    options: dict[str, object] = {"stripe_bytes": STRIPE_BYTES, **given}
    async with memory_client(broker, *IDS, **options) as client:
        nodes = Nodes(broker, client)
        try:
            for id in IDS:
                await nodes.start(id)
            yield nodes
        finally:
            await nodes.close()


async def test_a_large_value_lies_on_all_nodes_and_leaves_nothing_behind() -> None:
    async with three_nodes() as nodes:
        store, value = nodes.client, make_value(LARGE)
        assert await store.put("large", value)
        assert min(nodes.live().values()) >= 2
        copies = await store.replicas("large")
        assert copies is not None
        assert copies.size_bytes == LARGE
        assert {node for part in copies.parts for node in part} == set(IDS)
        await store.upsert("large", make_value(LARGE, 1))
        assert sum(nodes.live().values()) == 9  # one entry, eight stripes: none of the old ones
        await store.upsert("large", b"small now")
        assert sum(nodes.live().values()) == 1
        await store.upsert("large", value)
        assert await store.remove("large")
        assert sum(nodes.live().values()) == 0


async def test_a_lost_stripe_makes_a_miss_and_the_name_is_free_again() -> None:
    async with three_nodes() as nodes:
        store, value = nodes.client, make_value(LARGE)
        home = store.home("large")
        lost = next(id for id in IDS if id != home)
        await store.put("large", value)
        await nodes.end(lost)
        assert await store.get("large") is None
        assert sum(nodes.live().values()) > 0  # the node may come back with what its disk holds
        store.mesh.fixed.remove(lost)
        assert await store.put("large", value)
        assert await store.get("large") == value
        copies = await store.replicas("large")
        assert copies is not None
        assert sum(nodes.live().values()) == len(copies.parts) + 1  # what was left of it is gone


async def test_an_evicted_stripe_is_a_miss_for_get_exists_and_ranges_within_it() -> None:
    async with three_nodes() as nodes:
        store, value = nodes.client, make_value(LARGE)
        await store.put("large", value)
        segment, at = nodes.find(value[3 * STRIPE_BYTES :][:64])
        copies = await store.replicas("large")
        assert copies is not None
        node = nodes.nodes[copies.parts[3][0]]
        (key,) = [k for k, o in node.core.residents.objects.items() if o.place == at]
        node.core.remove(store.tenant, [key], 0.0)
        assert not await store.exists("large")
        assert await store.get_range("large", 0, 1000) == value[:1000]
        assert await store.get_range("large", 3 * STRIPE_BYTES, 10) is None
        assert await store.get("large") is None
        assert segment is node._segment


async def test_copies_outlive_a_node_and_readers_lose_nothing() -> None:
    async with three_nodes() as nodes:
        store = nodes.client
        values = {f"v{n}": make_value(size) for n, size in enumerate([50, 40_000, LARGE] * 4)}
        done = await store.put_many(values, replicas=2)
        assert done == dict.fromkeys(values, True)
        await nodes.end("node-2")
        got = await store.get_many(values)
        assert {name: result.unwrap() for name, result in got.items()} == values
        assert all((await store.exist_many(values)).values())
        await nodes.start("node-2")
        assert await store.upsert("v0", b"replaced", replicas=2) is None
        assert await store.get("v0") == b"replaced"


async def test_copies_are_added_dropped_and_moved() -> None:
    async with three_nodes() as nodes:
        store = nodes.client
        for name, size in [("small", 100), ("middle", 90_000), ("large", LARGE)]:
            value = make_value(size)
            await store.put(name, value)
            for id in IDS:
                assert await store.add_replica(name, id)
            copies = await store.replicas(name)
            assert copies is not None
            assert sorted(copies.nodes) == IDS
            for id in IDS[:2]:
                assert await store.drop_replica(name, id)
                assert not await store.drop_replica(name, id)
                assert await store.get(name) == value
            with pytest.raises(LastCopy):
                await store.drop_replica(name, "node-3")
            assert await store.move_replica(name, "node-3", "node-1")
            copies = await store.replicas(name)
            assert copies is not None
            assert copies.nodes == ["node-1"]
            assert await store.get(name) == value
            assert await store.remove(name)
            assert sum(nodes.live().values()) == 0
        assert not await store.add_replica("nowhere", "node-1")
        assert await store.replicas("nowhere") is None
        with pytest.raises(UnknownNode):
            await store.add_replica("small", "node-9")


async def test_readers_of_a_hot_value_spread_over_its_copies() -> None:
    async with three_nodes() as nodes:
        store, value = nodes.client, make_value(STRIPE_BYTES)
        await store.put("hot", value, replicas=3)
        got = await asyncio.gather(*(store.get("hot") for _ in range(60)))
        assert set(got) == {value}
        hits = [node.core.counters["get_hits_dram"] for node in nodes.nodes.values()]
        assert min(hits) >= 8
        assert store.own_stats()["reading_bytes"] == 0


async def test_a_batch_of_small_values_is_one_message_per_node() -> None:
    async with memory_mesh(1, lines=False) as store:
        values = {f"s{n}": make_value(4096, n) for n in range(64)}
        requests = store.blocks.calls._bus.stats
        before = requests()["requests"]
        assert await store.put_many(values) == dict.fromkeys(values, True)
        put = requests()["requests"]
        assert {n: r.value for n, r in (await store.get_many(values)).items()} == values
        assert (put - before, requests()["requests"] - put) == (1, 1)
        many = {f"m{n}": make_value(16_000, n) for n in range(200)}  # far beyond one message
        await store.put_many(many)
        assert {n: r.value for n, r in (await store.get_many(many)).items()} == many
        assert all((await store.exist_many(many)).values())


async def test_values_go_to_and_come_from_registered_memory() -> None:
    async with three_nodes() as nodes:
        store, mine = nodes.client, bytearray(LARGE + 20)
        region = store.register(mine)
        for size in (0, 1, 1000, 60_000, STRIPE_BYTES + 5, LARGE):
            value = make_value(size)
            mine[5 : 5 + size] = value
            assert await store.put_from(f"of {size}", region, 5, size)
            mine[:] = bytes(len(mine))
            assert await store.get_into(f"of {size}", region, 10) == size
            assert mine == bytes(10) + value + bytes(len(mine) - 10 - size)
            if size:
                with pytest.raises(TargetTooSmall):
                    await store.get_into(f"of {size}", region, 0, size - 1)
        assert await store.get_into("nowhere", region) is None
        with pytest.raises(BadRange, match="outside"):
            await store.get_into("of 1", region, 0, len(mine) + 1)
        got = await store.get_into_many({"of 1": (region, 0, 1), "nowhere": (region, 1, 1)})
        assert got == {"of 1": 1, "nowhere": None}
        await region.unregister()


@pytest.mark.parametrize("size", [8_000, 100_000, LARGE])
async def test_a_flipped_bit_fails_the_ranges_that_hold_it_and_no_other(size: int) -> None:
    async with three_nodes() as nodes:
        store, value = nodes.client, make_value(size)
        await store.put("value", value)
        segment, at = nodes.find(value[size - 600 : size - 500])
        segment[at] ^= 1
        if size > 64 << 10:
            assert await store.get_range("value", 0, 2000) == value[:2000]
        with pytest.raises(CorruptValue):
            await store.get_range("value", size - 610, 50)
        assert await store.get("value") is None  # the node was told, looked, and dropped it


async def test_a_tenant_sees_counts_and_wipes_its_own_alone() -> None:
    broker = MemoryBroker()
    async with (
        memory_node(broker, dram_bytes=DRAM_BYTES, host_id="here") as node,
        memory_client(broker, "node-1", tenant="a") as a,
        memory_client(broker, "node-1", tenant="b") as b,
        memory_client(broker, "node-1", tenant="b", salt=b"another secret") as salted,
    ):
        for store in (a, b):
            await store.put_many({f"n{n}": make_value(n * 9000) for n in range(5)})
        assert await a.pin("n1", "hard")
        assert await a.remove("n2")
        assert (await a.count(), await b.count()) == (4, 5)
        assert await salted.get("n1") is None  # of the same tenant, but without its salt
        assert await a.get("n2") is None
        assert await b.get("n2") == make_value(18_000)
        assert await a.wipe() == 4
        assert (await a.count(), await b.count()) == (0, 5)
        assert node.core.residents.live == 5
        assert await b.wipe() == 5


@pytest.mark.parametrize("placement", STRATEGY_NAMES)
async def test_every_placement_finds_its_values_again(placement: str) -> None:
    async with three_nodes(placement=placement) as nodes:
        store = nodes.client
        sizes = [100, 30_000, 120_000, LARGE] * 4
        values = {f"p{n}": make_value(size, n) for n, size in enumerate(sizes)}
        assert await store.put_many(values) == dict.fromkeys(values, True)
        got = await store.get_many(values)
        assert {name: result.unwrap() for name, result in got.items()} == values
        assert min(nodes.live().values()) > 0
        assert all((await store.remove_many(values)).values())
        assert sum(nodes.live().values()) == 0


async def test_a_value_that_pushes_out_its_own_beginning_is_refused() -> None:
    async with memory_mesh(1, stripe_bytes=4 << 20) as store:
        assert await store.put("pinned", make_value(8 << 20))
        assert await store.pin("pinned", "hard")
        with pytest.raises(NoSpace):
            await store.put("large", bytes(18 << 20))
        assert await store.get("pinned") == make_value(8 << 20)
        assert await store.count() == 1


async def test_names_are_found_wherever_a_changed_mesh_looks_for_them() -> None:
    async with three_nodes() as nodes:
        values = {f"v{n}": make_value(n * 4000, n) for n in range(30)}
        async with memory_client(nodes.broker, "node-1", stripe_bytes=STRIPE_BYTES) as alone:
            await alone.put_many(values)
        store = nodes.client
        assert not await store.put("v7", b"taken")  # though its home is another node now
        assert {n: r.value for n, r in (await store.get_many(values)).items()} == values
        await store.put_many(dict.fromkeys(values, b"new"), replace=True)
        assert sum(nodes.live().values()) == 30
        assert {r.value for r in (await store.get_many(values)).values()} == {b"new"}


@pytest.fixture(scope="module")
def processes() -> Iterator[RealMesh]:
    with real_mesh(3) as mesh:
        yield mesh


def own_bytes(process: psutil.Process) -> int:
    """Memory that is not the nodes' own, mapped here."""
    info = process.memory_info()
    return int(info.rss - info.shared)


@pytest.mark.slow
async def test_a_value_larger_than_any_node_passes_through_little_memory(
    processes: RealMesh,
) -> None:
    process = psutil.Process()
    async with client_of(processes, 3, stripe_bytes=1 << 20) as store:
        value = bytearray(make_value(1 << 20) * 40)
        region = store.register(value)
        before, seen = own_bytes(process), 0
        for transfer in (
            store.put("large", value),
            store.get_into("large", region),
            store.put_from("again", region, 0, 5 << 20),
        ):
            task = asyncio.ensure_future(transfer)
            while not task.done():
                seen = max(seen, own_bytes(process))
                await asyncio.wait([task], timeout=0.005)
            assert await task
        assert seen - before < len(value) // 2
        assert value == make_value(1 << 20) * 40
        assert await store.get_range("large", (20 << 20) - 5, 10) == value[(20 << 20) - 5 :][:10]
        await region.unregister()
        assert await store.wipe() > 40


@pytest.mark.slow
async def test_a_killed_or_stopped_node_costs_readers_little_once_and_others_nothing(
    processes: RealMesh,
) -> None:
    clock = asyncio.get_running_loop().time
    async with client_of(processes, 3, nodes=[], wait_s=20.0) as store:
        await store.wait_for_nodes(20.0, 3)
        values = {f"v{n}": make_value(STRIPE_BYTES, n) for n in range(30)}
        assert await store.put_many(values, replicas=2) == dict.fromkeys(values, True)
        first, second, _ = processes.nodes
        lonely = next(f"only {n}" for n in range(60) if store.home(f"only {n}") == first.id)
        safe = next(f"only {n}" for n in range(60) if store.home(f"only {n}") == "node-3")
        await store.put_many({lonely: b"one copy", safe: b"elsewhere"})
        done, slowest = asyncio.Event(), [0.0]

        async def read_all_the_time(names: list[str]) -> None:
            while not done.is_set():
                for name in names:
                    since_s = clock()
                    assert await store.get(name) == values[name]
                    slowest[0] = max(slowest[0], clock() - since_s)

        readers = [asyncio.create_task(read_all_the_time(list(values)[n::4])) for n in range(4)]
        first.kill()
        began_s = clock()
        assert await store.get(safe) == b"elsewhere"
        assert await store.get(lonely) is None  # it went with its node
        got = await store.get_many(values)
        assert {name: result.unwrap() for name, result in got.items()} == values
        once_s = clock() - began_s
        began_s = clock()
        assert {n: r.value for n, r in (await store.get_many(values)).items()} == values
        assert clock() - began_s < max(1.0, once_s)
        done.set()
        await asyncio.gather(*readers)
        assert max(once_s, slowest[0]) < store.blocks.calls._timeout_s / 2  # nobody sat it out
        second.process.send_signal(signal.SIGSTOP)
        await until(lambda: store.nodes() == ["node-3"], 20.0)
        assert await store.get(safe) == b"elsewhere"
        second.process.send_signal(signal.SIGCONT)
        await until(lambda: store.nodes() == ["node-2", "node-3"], 20.0)
        got = await store.get_many(values)
        assert {name: result.unwrap() for name, result in got.items()} == values
        with pytest.raises(BadRange):
            await store.get_range(safe, 100, 1)
