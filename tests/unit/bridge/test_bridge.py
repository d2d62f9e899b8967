"""A real ZMQ publisher on one side, a real conductor on the other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.kv import block_keys, foreign_root, pack_keys
from moonpool.messages.codec import decode, encode
from moonpool.messages.subjects import Subjects
from moonpool.messages.where import WhereReply, WhereRequest
from moonpool.runtime import new_context
from moonpool.settings import BridgeSettings, ConductorSettings, SettingsError
from services.bridge.link import BadEndpoint, EngineLink
from services.bridge.shell import serve
from services.conductor.shell import running_conductor
from tests.support.until import until
from tests.unit.bridge.publisher import CLEARED, Publisher, removed, stored

TOKENS = list(range(100, 116))
KEYS = pack_keys(block_keys(foreign_root("m", 4), TOKENS, 4))
FIRST, SECOND = stored([1, 2], None, TOKENS[:8]), stored([3, 4], 2, TOKENS[8:])
THIRD = stored([3], 2, TOKENS[8:12])


class Asker:
    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.held = -1

    async def ask(self) -> int:
        """Blocks of the prompt that the engine holds, as a conductor tells an outside router."""
        answer = await self._bus.request(Subjects().where, encode(WhereRequest(KEYS)), 2.0)
        holders = decode(answer, WhereReply).holders
        assert all((h.owner, h.role, h.tier) == ("v1", "foreign", "hbm") for h in holders)
        self.held = sum(holder.blocks for holder in holders)
        return self.held

    async def sees(self, blocks: int) -> None:
        async with asyncio.timeout(5.0):
            while True:
                if await self.ask() == blocks:
                    return
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def bridged(engine: Publisher, replay: bool = True) -> AsyncIterator[Asker]:
    broker = MemoryBroker()
    conductor_bus, bridge_bus, bus = (MemoryBus(broker) for _ in range(3))
    settings = BridgeSettings(
        bridge_endpoint=engine.endpoint,
        bridge_replay_endpoint=engine.replay_endpoint if replay else "",
        bridge_model="m",
    )
    conductor = new_context("conductor", ConductorSettings(), conductor_bus, id="c1")
    context = new_context("foreign", settings, bridge_bus, id="v1")
    async with running_conductor(conductor, warm_up_s=0.05) as running:
        serving = asyncio.create_task(serve(context))
        try:
            await until(lambda: running.core.fleet.get("v1") is not None)
            yield Asker(bus)
        finally:
            serving.cancel()
            await asyncio.wait({serving})
    for each in (conductor_bus, bridge_bus, bus):
        await each.close()


async def test_an_engine_is_found_with_what_it_held_before_the_bridge_came() -> None:
    async with Publisher() as engine:
        await engine.publish(FIRST)
        async with bridged(engine) as asker:
            await asker.sees(2)
            await engine.publish(SECOND)
            await asker.sees(4)
            await engine.publish(removed([4]))
            await asker.sees(3)
            await engine.publish(CLEARED)
            await asker.sees(0)


async def test_a_gap_is_replayed() -> None:
    async with Publisher() as engine:
        await engine.publish(FIRST)
        async with bridged(engine) as asker:
            await asker.sees(2)
            await engine.publish(removed([1, 2]), lost=True)
            await engine.publish(THIRD)
            await asker.sees(1)
            assert engine.replays == 2


@pytest.mark.parametrize("replay", [True, False])
async def test_after_events_lost_for_good_nothing_old_is_counted_on(replay: bool) -> None:
    async with Publisher(keeps=1) as engine, bridged(engine, replay) as asker:
        await _until_heard(engine, asker)
        await engine.publish(removed([9]), lost=True)
        await engine.publish(THIRD)
        await asker.sees(1)


async def test_an_engine_that_begins_anew_holds_nothing_of_before() -> None:
    async with Publisher() as engine:
        await engine.publish(FIRST)
        async with bridged(engine) as asker:
            await asker.sees(2)
            engine.begin_anew()
            await engine.publish(stored([7], None, TOKENS[:4]))
            await asker.sees(1)


async def _until_heard(engine: Publisher, asker: Asker) -> None:
    """Publishes until the subscription, which takes a moment, is there."""
    async with asyncio.timeout(5.0):
        while True:
            if await asker.ask() == 2:
                return
            await engine.publish(FIRST)
            await asyncio.sleep(0.02)


def test_a_bad_endpoint_names_itself() -> None:
    with pytest.raises(BadEndpoint, match="nowhere"):
        EngineLink("nowhere", "", "")


async def test_a_bridge_without_a_model_does_not_start() -> None:
    bus = MemoryBus(MemoryBroker())
    context = new_context("foreign", BridgeSettings(bridge_endpoint="tcp://127.0.0.1:1"), bus)
    with pytest.raises(SettingsError, match="MOONPOOL_BRIDGE_MODEL"):
        await serve(context)
    await bus.close()
