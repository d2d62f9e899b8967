"""Copies that a conductor asks of real nodes: made in the background, and the first to go again."""

import asyncio
import logging

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.clock import RealClock
from moonpool.kv import BlockKey, pack_keys
from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.ids import TenantId
from moonpool.messages.store import CopyReply, CopyRequest, SpareReply, SpareRequest
from moonpool.messages.subjects import Subjects
from moonpool.telemetry import Metrics
from services.conductor.balance import Order
from services.conductor.balancing import BalanceKeeper
from services.conductor.core import ConductorCore, Policy
from services.store.spread import KEYS_MAX
from tests.contract.test_store_company import ACME, DRAM_BYTES, SIZE, holds, key, put
from tests.support.store_nodes import memory_node
from tests.support.until import until

POLICY = Policy(1.0, 1.0, suspect_after_s=3.0, dead_after_s=30.0, balancing=True)


class Deciding(ConductorCore):
    """A core whose balancer decided what the test wants."""

    def __init__(self) -> None:
        super().__init__(POLICY)
        self.decided: list[Order] = []

    def balance(self, now_s: float) -> list[Order]:
        assert super().balance(now_s) == [], "nobody asked for anything yet"
        decided, self.decided = self.decided, []
        return decided


def packed(*numbers: int) -> bytes:
    return pack_keys([key(n) for n in numbers])


async def test_what_a_conductor_decides_is_copied_and_later_lets_others_stay() -> None:
    broker = MemoryBroker()
    async with (
        memory_node(broker, "a", dram_bytes=DRAM_BYTES, host_id="h") as a,
        memory_node(broker, "b", dram_bytes=DRAM_BYTES, host_id="h") as b,
        asyncio.TaskGroup() as group,
    ):
        core, subjects = Deciding(), Subjects()
        keeper = BalanceKeeper(
            MemoryBus(broker), subjects, RealClock(), core, "c", logging.getLogger(), Metrics()
        )
        task = group.create_task(keeper.run())
        await put(a, *range(8))
        await until(lambda: a.spread.peers is not None and a.spread.peers.taking() == ["b"])
        core.decided = [Order("a", "b", ACME, packed(*range(8), 99)), Order("z", "b", ACME, b"")]
        await until(lambda: keeper.stats().get("balanced_committed") == 8)
        assert all(holds(a, n) and holds(b, n) for n in range(8))
        await until(lambda: keeper.stats().get("balanced_untold") == 1)
        assert keeper.stats()["balanced_miss"] == 1
        core.decided = [Order("b", "", ACME, packed(*range(8)))]
        await until(lambda: keeper.stats().get("balanced_spare") == 8)
        many = DRAM_BYTES // SIZE
        await put(b, *range(100, 100 + many // 2))
        assert all(holds(b, n) for n in range(100, 100 + many // 2)), "only copies had to go"
        await put(b, *range(300, 300 + many // 2))
        assert not any(holds(b, n) for n in range(8))
        assert all(holds(a, n) for n in range(8))
        task.cancel()
        for node in (a, b):
            node.core.check()


async def test_what_makes_no_sense_is_said_so() -> None:
    broker = MemoryBroker()
    async with memory_node(broker, "a", dram_bytes=DRAM_BYTES, host_id="h") as a:
        await put(a, 1, 2)
        bus, subjects = MemoryBus(broker), Subjects()

        async def copied(tenant: str, keys: bytes, target: str) -> list[str]:
            request = encode(CopyRequest(TenantId(tenant), keys, target))
            answer = await bus.request(subjects.store("a", "copy"), request, 5.0)
            return decode(answer, CopyReply).results

        async def spared(tenant: str, keys: bytes) -> list[str]:
            request = encode(SpareRequest(TenantId(tenant), keys))
            answer = await bus.request(subjects.store("a", "spare"), request, 5.0)
            return decode(answer, SpareReply).results

        assert await copied(ACME, packed(1), "nobody") == ["unreachable"]
        assert await copied(ACME, packed(1), "a") == ["unreachable"], "not to itself"
        assert await spared("other", packed(1)) == ["miss"]
        assert await spared(ACME, packed(1, 3, 1)) == ["spare", "miss", "spare"]
        too_many = pack_keys([BlockKey(n.to_bytes(16, "big")) for n in range(KEYS_MAX + 1)])
        for keys in (b"short", too_many):
            with pytest.raises(MoonpoolError):
                await copied(ACME, keys, "b")
            with pytest.raises(MoonpoolError):
                await spared(ACME, keys)
        with pytest.raises(MoonpoolError):
            await spared("", packed(1))
