"""The store client over several nodes, and nodes that come and go."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from moonpool.bus import MemoryBroker
from moonpool.client import NoNodes, StoreClient
from moonpool.messages import TenantId
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess, memory_client, memory_node
from tests.support.until import until

DRAM_BYTES = 16 << 20


async def test_values_spread_over_nodes_and_are_found_wherever_they_are() -> None:
    broker = MemoryBroker()
    values = {f"v{n}": f"value {n}".encode() for n in range(60)}
    async with AsyncExitStack() as stack:
        for n in (1, 2, 3):
            await stack.enter_async_context(
                memory_node(broker, f"node-{n}", dram_bytes=DRAM_BYTES, host_id="here")
            )
        one = await stack.enter_async_context(memory_client(broker, "node-1"))
        everywhere = await stack.enter_async_context(
            memory_client(broker, "node-1", "node-2", "node-3")
        )
        assert await everywhere.put_many(values) == dict.fromkeys(values, True)
        blocks = {n: s.tiers[0].blocks for n, s in (await everywhere.stats()).items()}
        assert sum(blocks.values()) == 60
        assert min(blocks.values()) > 8
        assert await one.put("elsewhere", b"on node-1")
        names = [*values, "elsewhere", "nowhere"]
        got = await everywhere.get_many(names)
        assert {n: got[n].value for n in values} == values
        assert got["elsewhere"].value == b"on node-1"
        assert got["nowhere"].unwrap() is None
        assert await everywhere.exist_many(["elsewhere", "nowhere"]) == {
            "elsewhere": True,
            "nowhere": False,
        }
        assert await everywhere.remove("elsewhere")
        assert await one.get("elsewhere") is None


async def test_a_client_without_nodes_says_so() -> None:
    broker = MemoryBroker()
    async with memory_client(broker, "node-1") as client:
        client.mesh.fixed.clear()
        with pytest.raises(NoNodes):
            await client.wait_for_nodes(0.1)
        with pytest.raises(NoNodes):
            await client.get("anything")


async def test_a_node_that_dies_costs_its_own_values_and_no_time() -> None:
    values = {f"v{n}": f"value {n}".encode() for n in range(40)}
    with (
        NatsServer(jetstream=False) as server,
        NodeProcess(server.url, "node-1", dram_bytes=DRAM_BYTES) as first,
        NodeProcess(server.url, "node-2", dram_bytes=DRAM_BYTES),
    ):
        async with StoreClient.connect(server.url, wait_s=20.0) as store:
            await until(lambda: store.nodes() == ["node-1", "node-2"], 20.0)
            await store.put_many(values)
            lost = {n for n in values if store.home(n) == "node-1"}
            assert 5 < len(lost) < 35
            first.kill()
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            got = await store.get_many(values)
            assert loop.time() - began_s < store.blocks.calls._timeout_s / 2  # nobody waited
            assert {n for n in values if got[n].unwrap() is None} == lost
            assert all(got[n].value == values[n] for n in values.keys() - lost)
            assert store.nodes() == ["node-2"]
            assert await store.put_many({n: values[n] for n in lost}) == dict.fromkeys(lost, True)
            assert {n: r.value for n, r in (await store.get_many(values)).items()} == values


async def test_another_tenant_sees_and_removes_nothing() -> None:
    broker = MemoryBroker()
    async with (
        memory_node(broker, dram_bytes=DRAM_BYTES, host_id="here"),
        memory_client(broker, "node-1") as mine,
        memory_client(broker, "node-1", tenant="other") as theirs,
    ):
        await mine.put("name", b"mine")
        assert await theirs.get("name") is None
        assert await theirs.blocks.remove("node-1", TenantId("other"), [mine.key("name")]) == [
            "miss"
        ]
        assert await theirs.put("name", b"theirs")
        assert await mine.get("name") == b"mine"
        for client in (mine, theirs):
            (told,) = (await client.stats()).values()
            assert list(told.tenants) == [client.tenant]
            assert told.tiers[0].blocks == 2
        operators = await mine.blocks.stats("node-1")
        assert set(operators.tenants) == {"public", "other"}
