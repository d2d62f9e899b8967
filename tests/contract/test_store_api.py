"""What every store promises, wherever its bytes are: in memory, on one node, on three."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from moonpool.client import BadName, BadRange, Store, TargetTooSmall, ValueTooLarge
from moonpool.messages import CallerError
from moonpool.transfer import RegionClosed
from tests.support.store_worlds import (
    DRAM_BYTES,
    STRIPE_BYTES,
    RealMesh,
    make_value,
    real_mesh,
    store_world,
)

SIZES = [0, 1, 5000, (16 << 10) - 30, 16 << 10, 100_000, STRIPE_BYTES + 1, 5 * STRIPE_BYTES + 7]


@pytest.fixture(scope="module")
def processes() -> Iterator[RealMesh]:
    with real_mesh(3) as mesh:
        yield mesh


@pytest.fixture(params=["memory", "node", "nodes", pytest.param("real", marks=pytest.mark.slow),
                        pytest.param("reals", marks=pytest.mark.slow)])  # fmt: skip
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    is_real = request.param.startswith("real")
    mesh = request.getfixturevalue("processes") if is_real else None
    async with store_world(request.param, mesh) as made:
        yield made


async def test_what_was_put_is_what_one_gets(store: Store) -> None:
    for size_bytes in SIZES:
        value = make_value(size_bytes)
        assert await store.put(f"of {size_bytes}", value)
        assert await store.get(f"of {size_bytes}") == value
        assert await store.size(f"of {size_bytes}") == size_bytes
        assert await store.exists(f"of {size_bytes}")


async def test_any_plain_memory_is_a_value(store: Store) -> None:
    value = make_value(30_000)
    for name, given in [("a", bytearray(value)), ("b", memoryview(value)[10:20_010])]:
        assert await store.put(name, given)
        assert await store.get(name) == bytes(given)


async def test_a_taken_name_stays_as_it_is_until_it_is_replaced(store: Store) -> None:
    assert await store.get("name") is None
    assert not await store.exists("name")
    assert await store.size("name") is None
    assert await store.put("name", b"first")
    assert not await store.put("name", make_value(100_000))
    assert await store.get("name") == b"first"
    for size_bytes in [*SIZES, *reversed(SIZES)]:  # from each form of a value to each other
        await store.upsert("name", make_value(size_bytes, 1))
        assert await store.get("name") == make_value(size_bytes, 1)
    assert await store.remove("name")
    assert not await store.remove("name")
    assert await store.get("name") is None


async def test_batches_answer_per_name(store: Store) -> None:
    values = {f"b{n}": make_value(size, n) for n, size in enumerate(SIZES * 3)}
    await store.put("b3", b"there before")
    assert await store.put_many(values) == {name: name != "b3" for name in values}
    got = await store.get_many([*values, "unknown", "b0"])
    assert list(got) == [*values, "unknown"]
    assert got["b3"].value == b"there before"
    assert got["unknown"].unwrap() is None
    assert all(got[n].value == v for n, v in values.items() if n != "b3")
    assert await store.exist_many(["b1", "unknown"]) == {"b1": True, "unknown": False}
    sizes = await store.size_many([*values, "unknown"])
    assert sizes == {n: len(v) for n, v in values.items()} | {"b3": 12, "unknown": None}
    assert await store.put_many(values, replace=True) == dict.fromkeys(values, True)
    assert {n: r.value for n, r in (await store.get_many(values)).items()} == values
    removed = await store.remove_many(["b1", "unknown", "b7"])
    assert removed == {"b1": True, "unknown": False, "b7": True}


async def test_every_batch_is_as_good_as_its_single_calls(store: Store) -> None:
    values = {f"u{n}": make_value(size, n) for n, size in enumerate(SIZES)}
    await store.put("u1", b"older")
    assert await store.upsert_many(values) == dict.fromkeys(values, True)
    ranges = {"u1": (0, 1), "u3": (10, 50), "u7": (STRIPE_BYTES - 5, 10), "unknown": (0, 1)}
    got = await store.get_range_many(ranges | {"u2": (5001, 1)})
    assert list(got) == [*ranges, "u2"]
    for name, (start, length) in ranges.items():
        expected = values[name][start : start + length] if name in values else None
        assert got[name].unwrap() == expected
    assert isinstance(got["u2"].error, BadRange)
    names = ["u1", "u7", "unknown"]
    assert await store.pin_many(names, "hard") == {"u1": True, "u7": True, "unknown": False}
    assert await store.remove_many(names) == dict.fromkeys(names, False)
    assert await store.unpin_many(names) == {"u1": True, "u7": True, "unknown": False}
    assert await store.remove_many(names) == {"u1": True, "u7": True, "unknown": False}
    secured = await store.secure_many(["u2", "unknown"])
    assert secured == {"u2": await store.secure("u2"), "unknown": False}


async def test_values_come_from_and_go_to_registered_memory_and_are_seen_in_place(
    store: Store,
) -> None:
    mine = bytearray(5 * STRIPE_BYTES)
    region = store.register(mine)
    for size in (0, 1, 20_000, 3 * STRIPE_BYTES):
        name, value = f"of {size}", make_value(size)
        region.view[7 : 7 + size] = value
        assert await store.put_from(name, region, 7, size)
        assert not await store.put_from(name, region, 7, size)
        assert await store.put_from(name, region, 7, size, replace=True)
        region.view[:] = bytes(len(mine))
        assert await store.get_into(name, region, 9) == size
        assert mine[9 : 9 + size] == value
        async with store.view(name) as seen:
            assert seen is not None
            assert bytes(seen) == value
    async with store.view("nowhere") as seen:
        assert seen is None
    got = await store.get_into_many(
        {"of 1": (region, 0, 1), "of 20000": (region, 1, 19_999), "nowhere": (region, 1, 1)}
    )
    assert isinstance(got.pop("of 20000"), TargetTooSmall)
    assert got == {"of 1": 1, "nowhere": None}
    other = store.allocate(20_000)
    assert await store.get_into("of 20000", other) == 20_000
    assert bytes(other.view) == make_value(20_000)
    wrong: list[Any] = [(-1, 1), (0, -1), (len(mine), 1), (1.5, 1)]
    for place in wrong:
        with pytest.raises(BadRange):
            await store.put_from("x", region, *place)
        with pytest.raises(BadRange):
            await store.get_into("of 1", region, *place)
    for each in (region, other):
        await each.unregister()
        with pytest.raises(RegionClosed):
            await store.get_into("of 1", each)
        with pytest.raises(RegionClosed):
            await store.put_from("x", each, 0, 1)


async def test_a_range_is_the_same_as_of_the_value_itself(store: Store) -> None:
    choose = random.Random(7)
    for size_bytes in SIZES:
        value = make_value(size_bytes)
        await store.put(f"r{size_bytes}", value)
        edges = [0, size_bytes, size_bytes // 2, max(0, size_bytes - 1)]
        starts = [*edges, *(choose.randint(0, size_bytes) for _ in range(6))]
        for start in starts:
            length = choose.choice([0, 1, 10, 70_000, size_bytes, 2 * size_bytes])
            got = await store.get_range(f"r{size_bytes}", start, length)
            assert got == value[start : start + length], (size_bytes, start, length)
        with pytest.raises(BadRange):
            await store.get_range(f"r{size_bytes}", size_bytes + 1, 1)
    assert await store.get_range("nowhere", 0, 10) is None
    wrong: list[Any] = [(-1, 5), (0, -1), (1.5, 1), (0, "1"), (None, 1)]
    for given in wrong:
        with pytest.raises(BadRange):
            await store.get_range("r1", *given)
        with pytest.raises(BadRange):
            await store.get_range_many({"r1": given})


async def test_names_are_listed_counted_and_removed_by_prefix(store: Store) -> None:
    names = [f"{a}/{b}" for a in ("doc", "docs", "ünï") for b in range(12)]
    sizes = dict(zip(names, [SIZES[n % len(SIZES)] for n in range(len(names))], strict=True))
    await store.put_many({name: make_value(size) for name, size in sizes.items()})
    listed = [each async for each in store.list_names()]
    assert [each.name for each in listed] == sorted(names)
    assert {each.name: each.size_bytes for each in listed} == sizes
    assert [each.name async for each in store.list_names("doc/")] == sorted(names[:12])
    assert await store.count("doc") == 24
    assert await store.remove_prefix("doc/") == 12
    assert await store.remove_prefix("doc/") == 0
    assert await store.count() == 24
    assert await store.exists("docs/3")
    await store.upsert("docs/3", b"new")
    assert [each.size_bytes async for each in store.list_names("docs/3")] == [3]
    assert await store.wipe() >= 24
    assert await store.count() == 0
    assert [each async for each in store.list_names()] == []
    assert await store.get("docs/3") is None


async def test_pinned_hard_stays_until_unpinned(store: Store) -> None:
    values = {"small": b"x", "large": make_value(3 * STRIPE_BYTES)}
    await store.put_many(values)
    assert await store.pin_many([*values, "nowhere"], "hard") == {
        "small": True, "large": True, "nowhere": False,
    }  # fmt: skip
    for name, value in values.items():
        assert not await store.remove(name)
        assert await store.get(name) == value
        assert await store.unpin(name)
        assert await store.pin(name, "soft", ttl_s=60.0)
        assert await store.remove(name)
    with pytest.raises(CallerError, match="soft, hard, none"):
        await store.pin("small", "rock hard")
    assert not await store.unpin("nowhere")


async def test_nonsense_is_refused_and_typed(store: Store) -> None:
    for name in ["", "x" * 513, "ü" * 257, "\ud800", 7, b"bytes"]:
        with pytest.raises(BadName):
            await store.put(name, b"value")  # type: ignore[arg-type]
        with pytest.raises(BadName):
            await store.get(name)  # type: ignore[arg-type]
    assert await store.put("x" * 512, b"just fits")
    assert [each.name async for each in store.list_names()] == ["x" * 512]
    with pytest.raises(CallerError):
        await store.put("name", b"value", replicas=0)
    for value in ["text", 7, None, memoryview(bytes(10))[::2]]:
        with pytest.raises(CallerError, match="'name': a value"):
            await store.put("name", value)  # type: ignore[arg-type]
    with pytest.raises(ValueTooLarge):
        await store.put("name", bytes(4 * DRAM_BYTES))
    assert await store.get("name") is None


async def test_a_replaced_value_is_old_or_new_to_every_reader(store: Store) -> None:
    versions = [make_value(size, n) for n, size in enumerate(SIZES[1:])]
    await store.put("hot", versions[0])
    done, seen = asyncio.Event(), set()

    async def read() -> None:
        while not done.is_set():
            got = await store.get("hot")
            assert got in versions
            seen.add(len(got or b""))
            await asyncio.sleep(0)

    readers = [asyncio.create_task(read()) for _ in range(3)]
    for n in range(30):
        await store.upsert("hot", versions[n % len(versions)])
        await asyncio.sleep(0)
    done.set()
    await asyncio.gather(*readers)
    assert len(seen) > 1
    assert await store.count() == 1


async def test_writers_of_one_name_end_with_one_of_their_values(store: Store) -> None:
    values = [make_value(size, n) for n, size in enumerate([20, 20_000, 200_000, 30, 300_000])]
    fresh = await asyncio.gather(*(store.put("first come", value) for value in values))
    assert fresh.count(True) == 1
    assert await store.get("first come") == values[fresh.index(True)]
    await asyncio.gather(*(store.upsert("all come", value) for value in values))
    assert await store.get("all come") in values
