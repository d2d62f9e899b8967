"""Registration: waited for, accepted, or refused by name."""

import asyncio
import logging

import pytest

from moonpool.bus import Endpoint, MemoryBroker, MemoryBus
from moonpool.clock import VirtualClock
from moonpool.messages import CallerError, CapacityError
from moonpool.messages.codec import decode, encode
from moonpool.messages.registry import HelloReply, Registration
from moonpool.runtime import RegistrationRefused, ServiceContext, new_context, say_hello
from moonpool.settings import StoreSettings, load_settings


def make_context(broker: MemoryBroker, clock: VirtualClock) -> ServiceContext[StoreSettings]:
    return new_context(
        "store", load_settings(StoreSettings, {"MOONPOOL_ID": "n1"}), MemoryBus(broker), clock=clock
    )


async def test_hello_waits_for_a_conductor_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "moonpool.store")
    broker, clock = MemoryBroker(), VirtualClock()
    context = make_context(broker, clock)
    asking = asyncio.create_task(say_hello(context, context.registration()))
    await clock.advance(20.0)
    assert not asking.done()
    heard: list[Registration] = []

    async def accept(payload: bytes) -> bytes:
        heard.append(decode(payload, Registration))
        return encode(HelloReply())

    endpoint = Endpoint("hello", context.subjects.hello, accept, queue_group="conductor")
    await MemoryBus(broker).serve("conductor", "c1", "0.1.0", [endpoint])
    await clock.advance(3.0)
    await asking
    assert heard == [context.registration()]
    assert [record.message for record in caplog.records] == [
        "not registered yet",
        "registered with a conductor",
    ]


async def test_a_refusal_for_good_raises_what_the_conductor_said() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    context = make_context(broker, clock)
    refusal = CallerError("layers: 30 != 24 (ours, p1's)", code="fingerprint_mismatch").info()

    async def refuse(payload: bytes) -> bytes:
        return encode(HelloReply(refusal))

    endpoint = Endpoint("hello", context.subjects.hello, refuse)
    await MemoryBus(broker).serve("conductor", "c1", "0.1.0", [endpoint])
    with pytest.raises(RegistrationRefused, match="30 != 24") as caught:
        await say_hello(context, context.registration())
    assert caught.value.code == "fingerprint_mismatch"
    assert caught.value.refusal == refusal


async def test_a_conductor_without_room_is_asked_again() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    context = make_context(broker, clock)
    answers = [CapacityError("still starting").info(), None]

    async def answer(payload: bytes) -> bytes:
        return encode(HelloReply(answers.pop(0)))

    endpoint = Endpoint("hello", context.subjects.hello, answer)
    await MemoryBus(broker).serve("conductor", "c1", "0.1.0", [endpoint])
    asking = asyncio.create_task(say_hello(context, context.registration()))
    await clock.advance(3.0)
    await asking
    assert answers == []
