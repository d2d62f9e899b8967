"""Several nodes: copies that are wanted, made again after a loss; a node that drains gives away;
quotas and pins that hold for all of them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.kv import BlockKey, pack_keys, unpack_keys
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages.codec import decode
from moonpool.messages.errors import CallerError
from moonpool.messages.events import KvEvents
from moonpool.messages.ids import TenantId
from moonpool.messages.quota import TenantQuota, encode_quota
from moonpool.messages.store import (
    DrainRequest,
    PinRequest,
    PromoteRequest,
    PutEndItem,
    PutEndRequest,
    PutItem,
    PutStartRequest,
)
from services.store.errors import NodeDraining
from services.store.node import StoreNode
from services.store.objects import State
from tests.support.store_nodes import memory_client, memory_node
from tests.support.until import until

ACME = TenantId("acme")
SIZE, CHUNK = 64 << 10, 16 << 10
DRAM_BYTES = 8 << 20


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "big"))


def value(number: int) -> bytes:
    return Random(number).randbytes(SIZE)


async def put(
    node: StoreNode, *numbers: int, replicas: int = 1, durable: bool = False, used: bool = False
) -> list[str]:
    """As a writer does that shares memory with the node. `used`: and somebody reads it once."""
    items = [PutItem(key(n), SIZE, CHUNK) for n in numbers]
    opened = await node.put_start(PutStartRequest(ACME, items, replicas=replicas))
    ends = []
    for number, slot in zip(numbers, opened.slots, strict=True):
        if slot.status == "ok":
            assert opened.grant is not None
            at = opened.grant.offset + slot.offset
            node.region.view[at : at + SIZE] = value(number)
            sums = chunk_checksums(memoryview(value(number)), CHUNK)
            ends.append(PutEndItem(key(number), slot.generation, sums))
    done = iter((await node.put_end(PutEndRequest(opened.put, ends, durable))).results)
    if used:
        core = node.core
        lease, _ = core.get_start(ACME, [key(n) for n in numbers], 5.0, 0.0)
        core.get_end(lease, 0.0)
    return [next(done) if slot.status == "ok" else slot.status for slot in opened.slots]


def holds(node: StoreNode, number: int) -> bool:
    """Live in dram, with the right bytes."""
    obj = node.core.residents.objects.get(key(number))
    if obj is None or obj.state is not State.LIVE:
        return False
    return bytes(node.region.view[obj.place : obj.place + SIZE]) == value(number)


def holders(nodes: Sequence[StoreNode], number: int) -> int:
    return sum(holds(node, number) for node in nodes)


@asynccontextmanager
async def company(count: int, **settings: object) -> AsyncIterator[dict[str, StoreNode]]:
    """So many nodes that know each other."""
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        yield {
            f"node-{n}": await stack.enter_async_context(
                memory_node(broker, f"node-{n}", dram_bytes=DRAM_BYTES, host_id="h", **settings)
            )
            for n in range(count)
        }


async def test_wanted_copies_are_made_and_made_again_when_a_holder_leaves() -> None:
    broker = MemoryBroker()
    async with (
        memory_node(broker, "a", dram_bytes=DRAM_BYTES, host_id="h") as a,
        memory_node(broker, "b", dram_bytes=DRAM_BYTES, host_id="h") as b,
    ):
        async with memory_node(broker, "c", dram_bytes=DRAM_BYTES, host_id="h") as c:
            everyone = [a, b, c]
            assert await put(c, *range(12), replicas=2) == ["committed"] * 12
            await until(lambda: all(holders(everyone, n) == 2 for n in range(12)), 15.0)
            assert await put(c, 100) == ["committed"]
        await until(lambda: all(holders([a, b], n) == 2 for n in range(12)), 15.0)
        assert holders([a, b], 100) == 0
        await until(lambda: a.core.copies.copied + b.core.copies.copied >= 1)
        for node in (a, b):
            node.core.check()


async def test_a_node_that_drains_gives_away_what_is_worth_keeping() -> None:
    async with company(3) as nodes:
        leaving, *others = nodes.values()
        await put(leaving, *range(6), used=True)
        await put(leaving, *range(6, 12))
        pinned = pack_keys([key(6), key(7)])
        await leaving.pin(PinRequest(ACME, pinned, "hard"))
        await leaving.pin(PinRequest(ACME, pack_keys([key(8)]), "soft"))
        await leaving.drain(DrainRequest(within_s=20.0))
        with pytest.raises(NodeDraining):
            await put(leaving, 50)
        await leaving.say_farewell(20.0)
        assert leaving.core.counters["drain_left"] == 0
        assert all(holders(others, n) == 1 for n in range(9))
        assert all(holders(others, n) == 0 for n in range(9, 12))


async def test_what_lies_on_the_leaving_nodes_disk_is_given_away_too(tmp_path: Path) -> None:
    given = {"dram_bytes": 2 << 20, "nvme_dir": str(tmp_path), "nvme_bytes": 32 << 20}
    broker = MemoryBroker()
    async with (
        memory_node(broker, "a", host_id="h", **given) as leaving,
        memory_node(broker, "b", host_id="h", dram_bytes=DRAM_BYTES) as other,
    ):
        for first in range(0, 48, 8):  # more than dram holds
            await put(leaving, *range(first, first + 8), durable=True)
        await leaving.drain(DrainRequest(within_s=20.0))
        await leaving.say_farewell(20.0)
        assert all(holds(other, n) for n in range(48))
        assert leaving.core.counters["drain_left"] == 0
        leaving.core.check()


async def test_a_farewell_ends_with_its_time_and_without_anybody_to_give_to() -> None:
    async with company(1) as nodes:
        (node,) = nodes.values()
        await put(node, *range(4), used=True)
        await node.say_farewell(5.0)
        assert node.core.counters["drain_left"] == 4
        with pytest.raises(CallerError):
            await node.drain(DrainRequest(within_s=-1.0))


async def test_a_quota_set_by_an_operator_is_in_force_on_every_node_soon() -> None:
    broker = MemoryBroker()
    quotas = MemoryBus(broker).bucket("mp_quotas")
    await quotas.put("acme", encode_quota(TenantQuota(dram_bytes=2 * SIZE)))
    async with memory_node(broker, "a", dram_bytes=DRAM_BYTES) as a:
        assert await put(a, 1, 2, 3) == ["committed", "committed", "over_quota"]
        await quotas.put("acme", b"no quota at all")
        await quotas.put("acme", encode_quota(TenantQuota(dram_bytes=3 * SIZE)))
        await until(lambda: a.core.quotas.get(ACME).dram_bytes == 3 * SIZE)
        assert await put(a, 3, 4) == ["committed", "over_quota"]
        await quotas.delete("acme")
        await until(lambda: a.core.quotas.get(ACME).dram_bytes is None)
        assert await put(a, 4) == ["committed"]


async def test_a_hard_pin_is_known_to_every_node_and_to_the_next_life(tmp_path: Path) -> None:
    broker = MemoryBroker()
    given = {"dram_bytes": DRAM_BYTES, "nvme_dir": str(tmp_path), "nvme_bytes": 32 << 20}
    async with memory_node(broker, "a", **given) as a, memory_node(broker, "b", **given) as b:
        await put(a, 1, 2)
        await a.pin(PinRequest(ACME, pack_keys([key(1)]), "hard"))
        await until(lambda: b.core.pins.kind_of(key(1)) == "hard")
        await until(lambda: a.core.ladder.is_below(key(1)))
    async with memory_node(broker, "a", **given) as a:
        assert a.core.pins.kind_of(key(1)) == "hard"
        assert a.core.pins.kind_of(key(2)) == ""
        assert a.core.ladder.is_below(key(1))
        assert a.core.remove(ACME, [key(1)], 0.0) == ["pinned"]
        await a.pin(PinRequest(ACME, pack_keys([key(1)]), "none"))
    assert broker.buckets["mp_pins"] == {}


async def test_a_durable_put_is_answered_when_it_lies_below_or_says_so(tmp_path: Path) -> None:
    broker = MemoryBroker()
    given = {"dram_bytes": DRAM_BYTES, "nvme_dir": str(tmp_path), "nvme_bytes": 4 << 20}
    async with memory_node(broker, "a", **given) as a, memory_node(broker, "b") as b:
        assert await put(a, 1, 2, 3, durable=True) == ["committed"] * 3
        assert all(a.core.ladder.is_below(key(n)) for n in (1, 2, 3))
        assert all(holds(a, n) for n in (1, 2, 3))
        assert await put(b, 1, durable=True) == ["not_durable"]
        assert holds(b, 1)


async def test_what_will_be_read_soon_is_brought_up_ahead(tmp_path: Path) -> None:
    given = {"dram_bytes": DRAM_BYTES, "nvme_dir": str(tmp_path), "nvme_bytes": 32 << 20}
    async with memory_node(MemoryBroker(), "a", **given) as a:
        await put(a, *range(8), durable=True)
        for n in range(8):
            a.core.residents.drop(a.core.residents.objects[key(n)])
        keys = pack_keys([key(n) for n in range(8)])
        reply = await a.promote(PromoteRequest(ACME, keys, run_blocks=8))
        assert reply.loading == 8
        await until(lambda: all(holds(a, n) for n in range(8)))
        assert (await a.promote(PromoteRequest(ACME, keys))).loading == 0
        assert {o.hint.run_blocks for o in a.core.residents.objects.values()} == {8}
        a.core.check()


async def test_dram_comes_back_after_a_clean_stop_and_is_told_anew(tmp_path: Path) -> None:
    broker = MemoryBroker()
    given = {"dram_bytes": DRAM_BYTES, "dram_keep_dir": str(tmp_path)}
    async with memory_node(broker, "a", **given) as a:
        await put(a, *range(20))
        await a.pin(PinRequest(ACME, pack_keys([key(3)]), "hard"))
    told: set[bytes] = set()

    async def hear(_: str, payload: bytes) -> None:
        told.update(unpack_keys(decode(payload, KvEvents).stored))

    bus = MemoryBus(broker)
    await bus.subscribe("mp.kv.events.a", hear)
    async with memory_node(broker, "a", **given) as a:
        await until(lambda: all(holds(a, n) for n in range(20)))
        await until(lambda: told == {key(n) for n in range(20)})
        assert a.core.remove(ACME, [key(3), key(4)], 0.0) == ["pinned", "removed"]
        a.core.check()
    async with memory_node(broker, "a", **given) as a:
        await until(lambda: a.core.counters["restored_sound"] == 19)
        assert not holds(a, 4)
        await a.drain(DrainRequest(within_s=0.0))
    async with memory_node(broker, "a", **given) as a:
        assert await put(a, 50) == ["committed"]
        assert not any(holds(a, n) for n in range(20))  # who drained gave everything up
    await bus.close()


async def test_values_are_made_durable_as_by_an_fsync(tmp_path: Path) -> None:
    broker, large = MemoryBroker(), Random(5).randbytes(9 << 20)
    given = {"dram_bytes": 32 << 20, "nvme_dir": str(tmp_path), "nvme_bytes": 64 << 20}
    async with memory_node(broker, "a", **given) as a, memory_client(broker, "a") as client:
        await client.put("small", b"1")
        await client.put("large", large)
        told = await client.secure_many(["small", "large", "nowhere"])
        assert told == {"small": True, "large": True, "nowhere": False}
        assert all(map(a.core.ladder.is_below, a.core.live_keys()))
    async with memory_node(broker, "b", dram_bytes=DRAM_BYTES), memory_client(broker, "b") as other:
        await other.put("here", b"2")
        assert not await other.secure("here")
        assert await other.get("here") == b"2"
