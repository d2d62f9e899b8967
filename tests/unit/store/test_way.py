"""Room that a lower tier makes on demand, beyond what its headroom keeps free."""

from pathlib import Path
from typing import Any

from moonpool.bus import MemoryBroker
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.admission import DAY_S, WriteBudget
from services.store.records import Record
from services.store.shelf import Shelf
from services.store.tiers import NvmeTier
from services.store.tiers.record import record_bytes, round_up
from services.store.way import Way
from tests.support.store_nodes import memory_client, memory_node
from tests.support.store_worlds import make_value

MB = 1 << 20
SIZE = 20_000
PLACE = round_up(record_bytes(SIZE, SIZE))


def tiers(folder: Path, dram_bytes: int, nvme_bytes: int) -> dict[str, Any]:
    return {"dram_bytes": dram_bytes, "nvme_dir": str(folder), "nvme_bytes": nvme_bytes}


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "big"))


class Rack:
    """A shelf of ten places that is full, and a way to it; who must leave is dropped."""

    def __init__(self) -> None:
        tier = NvmeTier(10 * PLACE)
        self.shelf = Shelf(
            tier, headroom=0.0, budget=WriteBudget(tier.bytes_total, 0.0), first_serial=1
        )
        self.shelf.set_condition(online=True, writable=True, health="ok")
        self.shelf.end_load()
        self.way = Way(self.shelf)
        for number in range(10):
            assert self.arrive(number)

    def arrive(self, number: int) -> bool:
        record = self.shelf.begin_arrival(key(number), TenantId("t"), SIZE, SIZE, 0.0)
        if record is None:
            return False
        self.way.end(key(number))
        self.shelf.end_arrival(record, True, 0.0)
        return True

    def make(self, number: int) -> bool:
        return self.way.make(key(number), PLACE, 0.0, self.drop)

    def drop(self, victim: Record) -> bool:
        self.shelf.drop(victim)
        return True

    def erase(self) -> None:
        for record in self.shelf.take_erasures():
            self.shelf.end_erasure(record, True)


def test_a_place_is_made_for_each_who_waits_and_for_nobody_twice() -> None:
    rack = Rack()
    for number in range(20, 23):
        assert not rack.arrive(number)
        assert rack.make(number)
        assert rack.make(number)
    assert len(rack.shelf.gone) == 3
    rack.erase()
    assert all(rack.arrive(number) for number in range(20, 23))
    assert len(rack.way) == 0
    assert rack.shelf.live == 10
    rack.way.check()
    rack.shelf.check()


def test_who_does_not_ask_again_is_forgotten() -> None:
    rack = Rack()
    assert rack.make(20)
    rack.erase()
    rack.way.tick(10.0)
    assert len(rack.way) == 0
    assert rack.arrive(21)


def test_what_is_pinned_makes_no_room() -> None:
    rack = Rack()
    rack.shelf.pin_of = lambda _: "hard"
    assert not rack.make(20)
    assert rack.shelf.live == 10


def test_nothing_goes_for_what_may_not_be_written_today() -> None:
    budget = WriteBudget(1000, 1.0)
    assert budget.take(900, 0.0)
    assert not budget.has(200, 0.0)
    assert budget.has(100, 0.0)
    assert budget.has(1000, DAY_S)


async def test_a_burst_beyond_the_headroom_is_durable_all_of_it(tmp_path: Path) -> None:
    broker, given = MemoryBroker(), tiers(tmp_path, 64 * MB, 8 * MB)
    async with memory_node(broker, "a", **given) as node, memory_client(broker, "a") as store:
        for n in range(24):
            await store.put(f"v/{n}", make_value(MB, n))
            assert await store.secure(f"v/{n}")
        assert all((await store.secure_many([f"v/{n}" for n in range(20, 24)])).values())
        assert node.core.ladder.shelves[0].evictions >= 16
        node.core.check()
    async with memory_node(broker, "a", **given), memory_client(broker, "a") as store:
        assert await store.get("v/23") == make_value(MB, 23)


async def test_what_is_larger_than_the_headroom_finds_room_too(tmp_path: Path) -> None:
    broker, given = MemoryBroker(), tiers(tmp_path, 64 * MB, 5 * MB)
    async with memory_node(broker, "a", **given), memory_client(broker, "a") as store:
        for n in range(12):
            await store.put(f"v/{n}", make_value(2 * MB, n))
            assert await store.secure(f"v/{n}")


async def test_the_disk_keeps_what_came_last(tmp_path: Path) -> None:
    broker, given = MemoryBroker(), tiers(tmp_path, 16 * MB, 24 * MB)
    async with memory_node(broker, "a", **given) as node, memory_client(broker, "a") as store:
        for n in range(80):
            await store.put(f"v/{n}", make_value(MB, n))
            assert await store.get(f"v/{n}")
        there = await store.exist_many([f"v/{n}" for n in range(80)])
        assert node.core.counters["demotions_no_space"] == 0
        newest = [n for n in range(80) if there[f"v/{n}"]]
        assert set(range(60, 80)) <= set(newest)
        assert len(newest) < 45
        node.core.check()
