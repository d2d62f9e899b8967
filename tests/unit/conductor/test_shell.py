"""The conductor on a bus, among owners that talk as instances and nodes do."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from moonpool.bus import MemoryBroker, MemoryBus, NoResponder, Service
from moonpool.kv import BlockKey
from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.ids import InstanceId, RequestId, TenantId
from moonpool.messages.load import LoadReport
from moonpool.messages.plan import PlanReply, PlanRequest
from moonpool.messages.registry import HelloReply, ModelRecord
from moonpool.messages.status import ConductorStatus, StatusRequest
from moonpool.messages.subjects import Subjects
from moonpool.runtime import EventPublisher, Heart, ServiceContext, new_context
from moonpool.settings import CommonSettings, ConductorSettings
from services.conductor.holdings import StreamState
from services.conductor.shell import Conductor, running_conductor
from tests.support.until import until

MODEL = ModelRecord("m", b"f" * 32, "{}", 64, 1 << 20, 30, 32768, "bfloat16")
SUBJECTS = Subjects()
WARM_UP_S = 0.05


def chain(blocks: int, seed: int = 1) -> list[BlockKey]:
    rng = random.Random(seed)
    return [BlockKey(rng.randbytes(16)) for _ in range(blocks)]


@dataclass
class Owner:
    """A process that holds blocks: heartbeat, load, events, snapshots."""

    context: ServiceContext[CommonSettings]
    heart: Heart
    events: EventPublisher
    held: dict[str, dict[BlockKey, None]]
    service: Service
    loads: int = 0
    bus: MemoryBus = field(repr=False, default_factory=lambda: MemoryBus(MemoryBroker()))

    async def store(self, tier: str, keys: list[BlockKey]) -> None:
        self.held[tier].update(dict.fromkeys(keys))
        self.events.stored(tier, keys)
        await self.events.flush()

    async def report(self) -> None:
        self.loads += 1
        report = LoadReport(
            self.context.id,
            self.context.epoch,
            self.loads,
            slots_total=8,
            blocks_free=1000,
            blocks_total=1000,
        )
        await self.bus.publish(SUBJECTS.load(self.context.id), encode(report))

    async def die(self) -> None:
        """As after kill -9: no goodbye, and nobody serves its subjects."""
        await self.service.close()
        for task in (*self.heart._beating, *self.events._tasks):
            task.cancel()
        self.heart._beating = []
        self.events._tasks = []


@contextlib.asynccontextmanager
async def owner(
    broker: MemoryBroker, role: str, id: str, held: list[BlockKey] | None = None
) -> AsyncIterator[Owner]:
    bus = MemoryBus(broker)
    context = new_context(role, CommonSettings(host_id="h1"), bus, id=id)
    tier = "dram" if role == "store" else "hbm"
    blocks = {tier: dict.fromkeys(held or [])}
    events = EventPublisher(context, {tier: lambda: blocks[tier].keys()})
    model = None if role == "store" else MODEL
    heart = Heart(bus, SUBJECTS, context.clock, context.registration(model=model), "ready")
    service = await context.serve([events.endpoint()])
    async with events, heart:
        made = Owner(context, heart, events, blocks, service, bus=bus)
        await made.report()
        yield made
    await service.close()
    await bus.close()


@contextlib.asynccontextmanager
async def conductor(broker: MemoryBroker, id: str = "c1") -> AsyncIterator[Conductor]:
    bus = MemoryBus(broker)
    context = new_context("conductor", ConductorSettings(), bus, id=id)
    async with running_conductor(context, WARM_UP_S) as made:
        yield made
    await bus.close()


async def ask_plan(
    bus: MemoryBus, keys: list[BlockKey], exclude: tuple[str, ...] = ()
) -> PlanReply:
    request = PlanRequest(
        RequestId("r"),
        TenantId("t"),
        "m",
        MODEL.fingerprint,
        b"".join(keys),
        len(keys) * 64 + 10,
        100,
        exclude=tuple(map(InstanceId, exclude)),
    )
    return decode(await bus.request(SUBJECTS.plan, encode(request), 2.0), PlanReply)


async def reused(bus: MemoryBus, keys: list[BlockKey]) -> int:
    """Blocks that a plan would reuse now."""
    plan = (await ask_plan(bus, keys)).plan
    assert plan is not None
    return plan.runs[-1].end if plan.runs else 0


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def bus(broker: MemoryBroker) -> AsyncIterator[MemoryBus]:
    made = MemoryBus(broker)
    yield made
    await made.close()


async def beat_again(*owners: Owner) -> None:
    """Whoever was there before the conductor is heard at its next heartbeat."""
    for each in owners:
        await each.heart._beat()
        await each.report()


async def test_a_conductor_follows_what_owners_do(broker: MemoryBroker, bus: MemoryBus) -> None:
    keys = chain(20)
    async with (
        conductor(broker) as made,
        owner(broker, "prefill", "p1"),
        owner(broker, "decode", "d1"),
        owner(broker, "store", "n1", held=keys[:8]) as node,
    ):
        holdings = made.core.holdings
        await until(lambda: holdings.state("n1") is StreamState.FOLLOWING)
        await until(lambda: len(made.core.fleet) == 4)
        assert await reused(bus, keys) == 8
        await node.store("dram", keys[8:])
        await until(lambda: holdings.blocks("n1") == {"dram": 20})
        assert await reused(bus, keys) == 20
        made.core.check()


async def test_a_restarted_conductor_knows_everything_before_its_first_plan(
    broker: MemoryBroker, bus: MemoryBus
) -> None:
    keys = chain(40_000)
    async with (
        owner(broker, "prefill", "p1") as prefill,
        owner(broker, "decode", "d1") as decode_,
        owner(broker, "store", "n1", held=keys) as node,
    ):
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                starting = conductor(broker)
                entering = group.create_task(starting.__aenter__())
                await until(lambda: SUBJECTS.heartbeat in broker.pumps.values())
                await beat_again(prefill, decode_, node)
            made = entering.result()
            assert made.core.holdings.blocks("n1") == {"dram": 40_000}
            assert await reused(bus, keys[:500]) == 500
            await starting.__aexit__(None, None, None)
    with pytest.raises(NoResponder):
        await ask_plan(bus, keys[:2])


async def test_a_gap_is_noticed_and_healed(broker: MemoryBroker, bus: MemoryBus) -> None:
    keys = chain(10)
    async with conductor(broker) as made, owner(broker, "store", "n1") as node:
        holdings = made.core.holdings
        await until(lambda: holdings.state("n1") is StreamState.FOLLOWING)
        node.held["dram"].update(dict.fromkeys(keys[:5]))
        node.events._log.stored("dram", keys[:5])
        node.events._log.take()  # said, but never heard
        await node.store("dram", keys[5:])
        await until(lambda: holdings.blocks("n1") == {"dram": 10})
        assert holdings.gaps == 1


async def test_a_killed_owner_is_erased_on_the_first_complaint(
    broker: MemoryBroker, bus: MemoryBus
) -> None:
    async with (
        conductor(broker) as made,
        owner(broker, "prefill", "p1"),
        owner(broker, "prefill", "p2", held=chain(10)) as victim,
        owner(broker, "decode", "d1"),
    ):
        holdings = made.core.holdings
        await until(lambda: holdings.blocks("p2") == {"hbm": 10})
        await until(lambda: len(made.core.fleet) == 4)
        await victim.die()
        reply = await ask_plan(bus, chain(10), exclude=("p2",))
        assert reply.plan is not None
        assert reply.plan.prefill == "p1"
        await until(lambda: made.core.fleet.get("p2") is None, 1.0)
        assert await reused(bus, chain(10)) == 0


async def test_a_silent_owner_that_still_answers_is_only_suspect(broker: MemoryBroker) -> None:
    async with conductor(broker) as made, owner(broker, "store", "n1", held=chain(5)) as node:
        await until(lambda: made.core.holdings.blocks("n1") == {"dram": 5})
        for task in node.heart._beating:
            task.cancel()
        node.heart._beating = []
        await until(lambda: made.prober.probes > 0)
        assert made.core.fleet.get("n1") is not None
        assert made.prober.deaths == 0


async def test_a_restarted_owner_leaves_no_stale_hit(broker: MemoryBroker, bus: MemoryBus) -> None:
    keys = chain(10)
    async with (
        conductor(broker) as made,
        owner(broker, "prefill", "p1"),
        owner(broker, "decode", "d1"),
    ):
        async with owner(broker, "store", "n1", held=keys) as node:
            await until(lambda: made.core.holdings.blocks("n1") == {"dram": 10})
            await node.die()
        async with owner(broker, "store", "n1", held=keys[:3]):
            await until(lambda: made.core.holdings.blocks("n1") == {"dram": 3})
            assert await reused(bus, keys) == 3


async def test_conductors_share_the_work_and_survive_one_another(
    broker: MemoryBroker, bus: MemoryBus
) -> None:
    async with (
        conductor(broker, "c1") as first,
        owner(broker, "prefill", "p1"),
        owner(broker, "decode", "d1"),
    ):
        async with conductor(broker, "c2") as second:
            await until(lambda: len(second.core.fleet) == 4 and len(first.core.fleet) == 4, 5.0)
            for _ in range(10):
                await ask_plan(bus, chain(4))
            assert first.core.plans + sum(first.core.refusals.values()) > 0
        assert (await ask_plan(bus, chain(4))).plan is not None
        await until(lambda: first.core.fleet.get("c2") is None)


async def test_a_mismatched_twin_is_refused_at_hello(broker: MemoryBroker, bus: MemoryBus) -> None:
    async with conductor(broker) as made, owner(broker, "prefill", "p1"):
        await until(lambda: made.core.fleet.get("p1") is not None)
        stranger = new_context("decode", CommonSettings(host_id="h1"), bus, id="d9")
        other = ModelRecord("m", b"g" * 32, "{}", 128, 1 << 21, 30, 32768, "bfloat16")
        answer = await bus.request(SUBJECTS.hello, encode(stranger.registration(model=other)), 2.0)
        refusal = decode(answer, HelloReply).refusal
        assert refusal is not None
        assert refusal.code == "fingerprint_mismatch"
        assert "block_tokens: 128 != 64" in refusal.message


async def test_status_shows_the_mesh(broker: MemoryBroker, bus: MemoryBus) -> None:
    async with conductor(broker) as made, owner(broker, "store", "n1", held=chain(7)):
        await until(lambda: made.core.holdings.blocks("n1") == {"dram": 7})
        answer = await bus.request(SUBJECTS.conductor_status, encode(StatusRequest()), 2.0)
        status = decode(answer, ConductorStatus)
        assert [m.registration.id for m in status.members] == ["c1", "n1"]
        assert status.blocks == {"dram": 7}


async def test_rubbish_is_counted_and_harms_nothing(broker: MemoryBroker, bus: MemoryBus) -> None:
    async with conductor(broker) as made:
        for subject in (
            SUBJECTS.heartbeat,
            SUBJECTS.goodbye,
            SUBJECTS.load("x"),
            SUBJECTS.kv_events("x"),
        ):
            await bus.publish(subject, b"\xff rubbish")
        await until(lambda: made.malformed == 4)
        with pytest.raises(MoonpoolError):
            await bus.request(SUBJECTS.plan, b"\xff rubbish", 2.0)
        with pytest.raises(MoonpoolError):
            await bus.request(SUBJECTS.hello, b"", 2.0)


async def test_nothing_stays_behind(broker: MemoryBroker) -> None:
    before = len(asyncio.all_tasks())
    async with conductor(broker), owner(broker, "store", "n1", held=chain(5)):
        pass
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert not broker.pumps
    assert not broker.desks
