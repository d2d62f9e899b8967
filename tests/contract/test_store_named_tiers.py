"""Named values that left dram: found, listed, replaced and removed, over restarts too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from moonpool.bus import MemoryBroker
from moonpool.client import StoreClient
from services.store.node import StoreNode
from tests.support.store_nodes import memory_client, memory_node
from tests.support.store_worlds import STRIPE_BYTES, make_value
from tests.support.until import until

SIZES = [10, 12_000, 90_000, 3 * STRIPE_BYTES + 1]


@asynccontextmanager
async def node_over(folder: Path) -> AsyncIterator[tuple[StoreNode, StoreClient]]:
    broker = MemoryBroker()
    given = {"dram_bytes": 16 << 20, "nvme_dir": str(folder), "nvme_bytes": 64 << 20}
    async with (
        memory_node(broker, host_id="here", demote_after_uses=1, **given) as node,
        memory_client(broker, "node-1", stripe_bytes=STRIPE_BYTES) as client,
    ):
        yield node, client


async def test_names_and_values_survive_a_restart_in_the_nvme_tier(tmp_path: Path) -> None:
    values = {f"{a}/{n}": make_value(size, n) for a in "xy" for n, size in enumerate(SIZES * 2)}
    async with node_over(tmp_path) as (node, client):
        assert all((await client.put_many(values)).values())
        await client.upsert("x/0", b"replaced")
        values["x/0"] = b"replaced"
    async with node_over(tmp_path) as (node, client):
        assert node.core.residents.live == 0
        assert await client.exists("x/3")
        assert await client.size("x/3") == SIZES[3]
        assert not await client.put("y/1", b"taken")
        await until(lambda: not node.listing.names.unread)
        listed = {each.name: each.size_bytes async for each in client.list_names()}
        assert listed == {name: len(value) for name, value in values.items()}
        got = await client.get_many(values)
        assert {name: result.unwrap() for name, result in got.items()} == values
        assert await client.get_range("y/7", 100, 200_000) == values["y/7"][100:200_100]
        assert await client.remove_prefix("x/") == 8
        await client.upsert("y/3", b"small now")
        values["y/3"] = b"small now"
        node.listing.names.check()
    async with node_over(tmp_path) as (node, client):
        await until(lambda: not node.listing.names.unread)
        assert await client.count("x/") == 0
        assert await client.exist_many(["x/1", "x/7"]) == {"x/1": False, "x/7": False}
        assert await client.get("y/3") == b"small now"
        assert await client.count() == 8
        assert await client.wipe() > 8  # stripes are the tenant's too
        assert await client.count() == 0
    async with node_over(tmp_path) as (node, client):
        assert not any(shelf.live for shelf in node.core.ladder.shelves)
