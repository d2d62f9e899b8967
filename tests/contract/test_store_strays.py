"""Stripes that are not where their manifest says: nodes that left gave them to others."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moonpool.bus import MemoryBroker
from moonpool.client import LastCopy, StoreClient
from services.store.node import StoreNode
from tests.support.store_nodes import memory_client, memory_node
from tests.support.store_worlds import DRAM_BYTES, STRIPE_BYTES, client_of, make_value, real_mesh
from tests.support.until import until

LARGE = 4 * STRIPE_BYTES + 7


class Mesh:
    """Nodes a, b and c in this process, of which `leave` takes one away as a drain does."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.broker = MemoryBroker()
        self.nodes: dict[str, StoreNode] = {}
        self._ends: dict[str, AsyncExitStack] = {}

    async def join(self, id: str) -> None:
        stack = AsyncExitStack()
        given: dict[str, Any] = {"dram_bytes": DRAM_BYTES, "host_id": f"host-{id}"}
        if self._folder is not None:
            given |= {"nvme_dir": str(self._folder / id), "nvme_bytes": 64 << 20}
        self.nodes[id] = await stack.enter_async_context(memory_node(self.broker, id, **given))
        self._ends[id] = stack

    async def end(self, id: str) -> None:
        await self._ends.pop(id).aclose()
        del self.nodes[id]

    async def leave(self, id: str) -> None:
        node = self.nodes[id]
        node.core.drain()
        await node.say_farewell(20.0)
        assert node.core.counters["drain_left"] == node.core.counters["drain_failed"] == 0
        await self.end(id)

    async def close(self) -> None:
        for id in list(self.nodes):
            await self.end(id)

    def keys(self) -> int:
        """Objects on all nodes, copies counted as such."""
        return sum(len(node.core.residents.objects) for node in self.nodes.values())


@asynccontextmanager
async def three(folder: Path | None = None) -> AsyncIterator[tuple[Mesh, StoreClient]]:
    """Three nodes, and a client that puts where chance wants: so there are stripes everywhere."""
    mesh = Mesh(folder)
    try:
        for id in "abc":
            await mesh.join(id)
        async with memory_client(
            mesh.broker, placement="random", stripe_bytes=STRIPE_BYTES
        ) as store:
            await store.wait_for_nodes(5.0, 3)
            yield mesh, store
    finally:
        await mesh.close()


async def put_pinned(store: StoreClient, count: int = 12) -> dict[str, bytes]:
    values = {f"v/{n}": make_value(LARGE if n % 3 else 20_000, n) for n in range(count)}
    assert set((await store.put_many(values)).values()) == {True}
    assert all((await store.pin_many(values, "hard")).values())
    return values


async def require(store: StoreClient, values: Mapping[str, bytes]) -> None:
    assert await store.exist_many(values) == dict.fromkeys(values, True)
    got = await store.get_many(values)
    assert {name for name in values if got[name].unwrap() != values[name]} == set()


async def test_values_outlive_the_farewell_of_their_nodes_and_their_entries_are_mended() -> None:
    async with three() as (mesh, store):
        values = await put_pinned(store)
        await mesh.leave("a")
        await require(store, values)
        for name in values:
            copies = await store.replicas(name)
            assert copies is not None
            assert "a" not in {node for nodes in copies.parts for node in nodes}
        await mesh.join("a")  # another life, with nothing in it
        await store.wait_for_nodes(5.0, 3)
        await mesh.leave("b")
        await require(store, values)
        assert await store.get_range("v/1", LARGE - 10, 10) == values["v/1"][-10:]
        mesh.nodes["a"].core.check()


async def test_what_strayed_is_unpinned_replaced_and_removed_with_its_value() -> None:
    async with three() as (mesh, store):
        values = await put_pinned(store)
        await mesh.leave("a")
        assert await store.unpin_many(values) == dict.fromkeys(values, True)
        assert all((await store.pin_many(values, "hard")).values())
        await store.upsert("v/1", b"small")
        await store.upsert("v/2", make_value(LARGE, 77))
        values |= {"v/1": b"small", "v/2": make_value(LARGE, 77)}
        await require(store, values)
        assert await store.unpin_many(values) == dict.fromkeys(values, True)
        assert await store.remove_many(values) == dict.fromkeys(values, True)
        assert mesh.keys() == 0


async def test_a_copy_that_strayed_is_not_taken_for_one_too_many() -> None:
    async with three() as (mesh, store):
        values = await put_pinned(store)
        name = "v/1"
        await mesh.leave("a")
        copies = await store.replicas(name)
        assert copies is not None
        for node in ("b", "c"):
            await store.add_replica(name, node)
        assert await store.drop_replica(name, "b")
        with pytest.raises(LastCopy):
            await store.drop_replica(name, "c")
        assert await store.get(name) == values[name]
        await mesh.join("a")
        await store.wait_for_nodes(5.0, 3)
        assert await store.move_replica(name, "c", "a")
        assert (await store.replicas(name)).parts == [["a"]] * 5  # type: ignore[union-attr]
        assert await store.get(name) == values[name]


async def test_a_value_without_all_its_stripes_is_a_miss_and_its_name_is_free() -> None:
    async with three() as (mesh, store):
        values = await put_pinned(store)
        await mesh.end("c")
        left = {name for name, is_there in (await store.exist_many(values)).items() if is_there}
        assert left < set(values)
        got = await store.get_many(values)
        assert {name for name in values if got[name].unwrap() is not None} == left
        for name in set(values) - left:
            assert await store.put(name, b"new")
            assert await store.get(name) == b"new"
        for name in left:
            assert not await store.put(name, b"new")
        assert await store.get_many(left) == {name: got[name] for name in left}


async def test_a_read_while_a_node_is_away_takes_nothing_from_what_its_disk_holds(
    tmp_path: Path,
) -> None:
    async with three(tmp_path) as (mesh, store):
        values = {f"v/{n}": make_value(LARGE, n) for n in range(8)}
        await store.put_many(values)
        assert all((await store.secure_many(values)).values())
        await mesh.end("c")
        got = await store.get_many(values)
        assert None in {got[name].unwrap() for name in values}
        await mesh.join("c")
        await store.wait_for_nodes(5.0, 3)
        await require(store, values)


async def test_an_entry_that_is_mended_lies_below_as_before(tmp_path: Path) -> None:
    async with three(tmp_path) as (mesh, store):
        name = next(f"v/{n}" for n in range(99) if store.home(f"v/{n}") == "a")
        await store.put(name, make_value(LARGE))
        assert await store.secure(name)
        assert mesh.nodes["a"].core.ladder.is_below(store.key(name))
        await store.add_replica(name, "b")
        assert mesh.nodes["a"].core.ladder.is_below(store.key(name))
        (entry,) = [n for n in mesh.nodes.values() if n.core.ladder.is_below(store.key(name))]
        entry.core.check()


@pytest.mark.slow
async def test_a_real_drain_loses_no_pinned_value() -> None:
    with real_mesh(3, dram_bytes=64 << 20) as mesh:
        async with client_of(mesh, 3, nodes=(), placement="random") as store:
            await store.wait_for_nodes(10.0, 3)
            values = await put_pinned(store, 60)
            leaving = mesh.nodes[1]
            assert await store.blocks.calls.drain(leaving.id, 20.0)
            await until(lambda: leaving.process.poll() is not None, 30.0)
            assert "left=0 failed=0" in leaving.lines()
            await require(store, values)
            assert leaving.id not in (await store.replicas("v/1")).nodes  # type: ignore[union-attr]
