"""Duties are told over the bus, by one conductor, and take effect in plans."""

import logging

from moonpool.bus import Endpoint, MemoryBroker, MemoryBus
from moonpool.clock import VirtualClock
from moonpool.messages.advice import AdviceReply, AdviceRequest, RoleReply, RoleRequest
from moonpool.messages.codec import decode, encode
from moonpool.messages.registry import Heartbeat, Registration
from moonpool.messages.subjects import Subjects
from services.conductor.advice import Advisor
from services.conductor.roles import HOLD_S, Order
from services.conductor.switching import RoleKeeper
from tests.support.until import until
from tests.unit.conductor.driver import Mesh
from tests.unit.conductor.test_advice import ask
from tests.unit.conductor.test_shell import chain, conductor, owner

SUBJECTS = Subjects()


def beat(mesh: Mesh, id: str) -> None:
    registration = Registration(id, "conductor", "e", 1.0, "h", "1")
    mesh.core.heartbeat(Heartbeat(registration, "ready"), mesh.now_s)


def keeper(mesh: Mesh, advisor: Advisor, bus: MemoryBus, id: str = "c1") -> RoleKeeper:
    log = logging.getLogger("test")
    return RoleKeeper(bus, SUBJECTS, VirtualClock(), mesh.core.fleet, advisor, id, log)


def busy_mesh() -> tuple[Mesh, Advisor, list[tuple[float, Order]], RoleKeeper]:
    """Four that can do both, and far more prompts than half of each can compute."""
    mesh = Mesh()
    for number in range(4):
        mesh.join("colocated", f"c{number}")
        mesh.learn_prefill(f"c{number}", 0.001)
        mesh.learn_step(f"c{number}", 0.02)
    advisor = Advisor(mesh.core, mesh.now_s)
    roles = keeper(mesh, advisor, MemoryBus(MemoryBroker()))
    found: list[tuple[float, Order]] = []
    start_s = mesh.now_s
    for second in range(int(HOLD_S) + 15):
        for number in range(3):
            ask(mesh, advisor, f"r{second}.{number}", 1000)
        mesh.wait(1.0)
        found += [(mesh.now_s - start_s, order) for order in roles.orders(mesh.now_s)]
        for _, order in found:
            mesh.report(order.id, duty=order.duty)
    return mesh, advisor, found, roles


def test_a_mesh_short_of_prefill_turns_one_into_a_prefill_after_a_while() -> None:
    mesh, _, found, _ = busy_mesh()
    ((at_s, order),) = found
    assert at_s >= HOLD_S
    assert order.duty == "prefill"
    member = mesh.core.fleet.get(order.id)
    assert member is not None
    assert member.duty == "prefill"
    mesh.core.check()


def test_the_first_conductor_alone_speaks_and_the_next_takes_over() -> None:
    mesh = Mesh()
    advisor = Advisor(mesh.core, mesh.now_s)
    bus = MemoryBus(MemoryBroker())
    first, second = keeper(mesh, advisor, bus, "c1"), keeper(mesh, advisor, bus, "c2")
    assert first.leads()
    for id in ("c1", "c2"):
        beat(mesh, id)
    assert (first.leads(), second.leads()) == (True, False)
    mesh.wait(4.0)
    beat(mesh, "c2")
    assert second.leads()


async def test_an_order_reaches_the_instance_and_one_that_is_gone_is_counted() -> None:
    mesh = Mesh()
    bus, told = MemoryBus(MemoryBroker()), []

    async def obey(payload: bytes) -> bytes:
        told.append(decode(payload, RoleRequest).duty)
        return encode(RoleReply(told[-1]))

    await bus.serve("colocated", "c7", "1", [Endpoint("role", SUBJECTS.role("c7"), obey)])
    roles = keeper(mesh, Advisor(mesh.core, mesh.now_s), bus)
    await roles._tell(Order("c7", "decode"))
    await roles._tell(Order("c8", "decode"))
    assert told == ["decode"]
    assert roles.stats() == {"duties_told": 1, "duties_failed": 1}
    await bus.close()


async def test_advice_is_answered_on_the_bus() -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    async with conductor(broker) as made, owner(broker, "prefill", "p1", chain(2)):
        await until(lambda: made.core.fleet.get("p1") is not None)
        answer = await bus.request(SUBJECTS.advise, encode(AdviceRequest()), 2.0)
        reply = decode(answer, AdviceReply)
        assert reply.conductor == "c1"
        (model,) = reply.models
        assert [side.side for side in model.sides] == ["prefill", "decode"]
        assert model.says == "add 1 decode"
    await bus.close()
