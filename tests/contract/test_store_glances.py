"""Asking whether a value is there and how large it is: one short question to its home."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from moonpool.bus import MemoryBroker
from moonpool.client import StoreClient
from services.store.node import StoreNode
from tests.support.store_nodes import memory_client, memory_node

KIB = 1 << 10
SIZES = [0, 1, 400, 600, 4 * KIB, 17 * KIB, 300 * KIB]
STRIPE_BYTES = 64 * KIB
Nodes = dict[str, StoreNode]


@asynccontextmanager
async def a_mesh(count: int, lines: bool = True) -> AsyncIterator[tuple[Nodes, StoreClient]]:
    broker, ids = MemoryBroker(), [f"node-{n}" for n in range(count)]
    async with AsyncExitStack() as stack:
        nodes = {
            id: await stack.enter_async_context(
                memory_node(broker, id, dram_bytes=48 << 20, host_id="elsewhere")
            )
            for id in ids
        }
        yield (
            nodes,
            await stack.enter_async_context(
                memory_client(broker, *ids, stripe_bytes=STRIPE_BYTES, lines=lines)
            ),
        )


def frames(nodes: Nodes) -> dict[str, int]:
    """Questions that came on lines, by node."""
    return {id: node.core.counters["line_frames"] for id, node in nodes.items()}


@pytest.mark.parametrize(("count", "lines"), [(1, True), (1, False), (3, True)])
async def test_values_of_every_kind_are_there_and_as_large_as_they_are(
    count: int, lines: bool
) -> None:
    async with a_mesh(count, lines) as (nodes, client):
        sizes: dict[str, int | None] = {f"v{size}": size for size in SIZES}
        sizes["many stripes"] = 200 * STRIPE_BYTES + 17  # whose list is longer than a glance
        for name, size in sizes.items():
            assert not await client.exists(name)
            assert await client.size(name) is None
            await client.put(name, os.urandom(size or 0))
            assert await client.exists(name)
            assert await client.size(name) == size
        assert await client.size_many([*sizes, "nowhere"]) == {**sizes, "nowhere": None}
        there = await client.exist_many(["nowhere", *sizes])
        assert there == {"nowhere": False, **dict.fromkeys(sizes, True)}
        assert await client.exist_many([]) == {}
        assert (sum(frames(nodes).values()) > 0) is lines


async def test_a_home_that_has_it_is_asked_alone_and_not_on_the_bus() -> None:
    async with a_mesh(3) as (nodes, client):
        await client.put_many({f"v{n}": b"value" for n in range(30)})
        for n in range(30):
            name = f"v{n}"
            assert await client.exists(name)  # by now there are lines to all homes
        bus = client.blocks.calls._bus
        before, asked = frames(nodes), bus.stats()["requests"]
        for n in range(30):
            await client.exists(f"v{n}")
        added = {id: count - before[id] for id, count in frames(nodes).items()}
        homes = [client.home(f"v{n}") for n in range(30)]
        assert added == {id: homes.count(id) for id in nodes}
        assert set((await client.size_many(f"v{n}" for n in range(30))).values()) == {5}
        assert bus.stats()["requests"] == asked


async def test_what_lies_elsewhere_than_at_home_is_there_all_the_same() -> None:
    async with a_mesh(3) as (_, client):
        everybody = list(client.mesh.fixed)
        client.mesh.fixed[:] = ["node-1"]
        await client.put_many({f"v{n}": bytes(n) for n in range(12)})
        client.mesh.fixed[:] = everybody
        assert {client.home(f"v{n}") for n in range(12)} > {"node-1"}
        for n in range(12):
            assert await client.exists(f"v{n}")
            assert await client.size(f"v{n}") == n
        assert set((await client.exist_many(f"v{n}" for n in range(12))).values()) == {True}


async def test_to_ask_whether_it_is_there_keeps_nothing_from_being_evicted() -> None:
    async with a_mesh(1) as (_, client):
        await client.put("first", os.urandom(STRIPE_BYTES // 2))
        n = 0
        while await client.exists("first"):
            assert n < 60
            await client.put(f"later {n}", os.urandom(1 << 20))
            assert await client.size("first") in (STRIPE_BYTES // 2, None)
            n += 1
        assert n > 20  # it went when its turn came, the first of all
        there = await client.exist_many(f"later {each}" for each in range(n))
        assert list(there.values()).count(False) <= 2
