"""Values put with copies: nodes keep up their number when one of them is gone."""

from collections.abc import Mapping

import pytest

from moonpool.client import StoreClient
from tests.support.store_worlds import (
    STRIPE_BYTES,
    RealMesh,
    client_of,
    make_value,
    memory_mesh,
    real_mesh,
)
from tests.support.until import until

SIZES = (10, 20_000, 3 * STRIPE_BYTES + 7)


async def put(store: StoreClient, count: int, replicas: int = 2) -> dict[str, bytes]:
    values = {f"v/{n}": make_value(SIZES[n % 3], n) for n in range(count)}
    assert set((await store.put_many(values, replicas=replicas)).values()) == {True}
    return values


async def require(store: StoreClient, values: Mapping[str, bytes]) -> None:
    got = await store.get_many(values)
    assert {name for name in values if got[name].unwrap() != values[name]} == set()


async def are_copied(store: StoreClient, values: Mapping[str, bytes], count: int) -> bool:
    """Whether so many nodes hold each entry and each stripe."""
    for name in values:
        copies = await store.replicas(name)
        if copies is None or len(copies.entries) < count:
            return False
        if any(len(nodes) < count for nodes in copies.parts):
            return False
    return True


async def lose(mesh: RealMesh, store: StoreClient, index: int, left: Mapping[str, bytes]) -> None:
    """Kills a node, and waits until the others hold two copies of everything again."""
    id = mesh.nodes[index].id
    mesh.nodes[index].kill()
    await until(lambda: id not in store.nodes(), 20.0)
    await require(store, left)
    await until(lambda: are_copied(store, left, 2), 30.0, every_s=0.2)


async def test_nothing_is_copied_beyond_what_was_asked_for_and_removal_takes_all() -> None:
    async with memory_mesh(3) as store:
        values = await put(store, 12)
        assert await are_copied(store, values, 2)
        assert not await are_copied(store, values, 3)
        stats = await store.stats()
        watched = sum(each.counters["replicated"] for each in stats.values())
        assert watched == 2 * sum(1 if n % 3 == 0 else 2 if n % 3 == 1 else 5 for n in range(12))
        assert await store.remove_many(values) == dict.fromkeys(values, True)
        stats = await store.stats()
        assert sum(each.tiers[0].blocks for each in stats.values()) == 0
        assert sum(each.counters["replicas_made"] for each in stats.values()) == 0


async def test_one_copy_is_watched_by_nobody() -> None:
    async with memory_mesh(1) as store:
        await put(store, 6)  # there is no second node
        await store.put("one", make_value(SIZES[2]))
        assert all(s.counters["replicated"] == 0 for s in (await store.stats()).values())


@pytest.mark.slow
async def test_copies_are_made_again_after_a_crash_so_that_a_second_one_loses_nothing() -> None:
    with real_mesh(4, dram_bytes=64 << 20) as mesh:
        async with client_of(mesh, 4, nodes=()) as store:
            await store.wait_for_nodes(10.0, 4)
            values = await put(store, 30)
            await lose(mesh, store, 1, values)
            await lose(mesh, store, 2, values)
            await require(store, values)
            assert await store.remove_many(values) == dict.fromkeys(values, True)
