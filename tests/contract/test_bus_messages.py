"""The bus contract, subscriptions and sizes: over a real NATS server and in memory."""

import asyncio

import pytest

from moonpool.bus import Bus, Endpoint, NoResponder, PayloadTooLarge
from moonpool.messages import Blame, MoonpoolError
from tests.support.buses import MakeBus, echo, length
from tests.support.until import until


async def test_a_subscription_gets_matching_messages_in_order(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    seen: list[tuple[str, bytes]] = []

    async def note(subject: str, payload: bytes) -> None:
        seen.append((subject, payload))

    await here.subscribe("s.*.end", note)
    for number in range(50):
        await there.publish(f"s.{number}.end", str(number).encode())
        await there.publish(f"s.{number}.other", b"")
        await there.publish("s.end", b"")
    await until(lambda: len(seen) >= 50)
    assert seen == [(f"s.{number}.end", str(number).encode()) for number in range(50)]


async def test_a_tail_wildcard_matches_any_depth(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    seen: list[str] = []

    async def note(subject: str, payload: bytes) -> None:
        seen.append(subject)

    await here.subscribe("d.>", note)
    for subject in ("d", "d.a", "d.a.b.c", "e.a"):
        await there.publish(subject, b"")
    await there.publish("d.last", b"")
    await until(lambda: "d.last" in seen)
    assert seen == ["d.a", "d.a.b.c", "d.last"]


async def test_a_slow_reader_loses_the_oldest_and_counts_them(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    seen: list[bytes] = []
    hold = asyncio.Event()

    async def slow(subject: str, payload: bytes) -> None:
        seen.append(payload)
        await hold.wait()

    subscription = await here.subscribe("q.slow", slow, queue_max=4)
    await there.publish("q.slow", b"first")
    await until(lambda: bool(seen))
    for number in range(10):
        await there.publish("q.slow", str(number).encode())
    await until(lambda: subscription.stats()["dropped"] == 6)
    hold.set()
    await until(lambda: len(seen) == 5)
    assert seen == [b"first", b"6", b"7", b"8", b"9"]
    assert here.stats()["dropped"] == 6
    await subscription.close()
    assert here.stats()["dropped"] == 6


async def test_a_failing_callback_does_not_end_its_subscription(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = await make_bus(), await make_bus()
    seen: list[bytes] = []

    async def picky(subject: str, payload: bytes) -> None:
        if payload == b"bad":
            raise ValueError("bad one")
        seen.append(payload)

    subscription = await here.subscribe("q.picky", picky)
    for payload in (b"a", b"bad", b"b"):
        await there.publish("q.picky", payload)
    await until(lambda: seen == [b"a", b"b"])
    assert subscription.stats()["errors"] == 1
    assert "bad one" in caplog.text


async def test_after_close_a_subscription_is_silent_even_when_closed_from_inside(
    make_bus: MakeBus,
) -> None:
    here, there = await make_bus(), await make_bus()
    seen: list[bytes] = []

    async def once(subject: str, payload: bytes) -> None:
        seen.append(payload)
        await subscription.close()

    subscription = await here.subscribe("q.once", once)
    for number in range(5):
        await there.publish("q.once", str(number).encode())
    await until(lambda: bool(seen))
    await there.publish("q.once", b"late")
    assert await _echoed(here, there)
    assert seen == [b"0"]
    await subscription.close()
    assert here.stats()["subscriptions"] == 0


async def test_oversize_is_refused_before_it_is_sent(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    await there.serve("store", "n1", "0.1.0", [Endpoint("len", "t.len", length)])
    too_long = bytes(here.payload_max_bytes + 1)
    with pytest.raises(PayloadTooLarge) as caught:
        await here.publish("t.any", too_long)
    assert caught.value.max_bytes == here.payload_max_bytes
    with pytest.raises(PayloadTooLarge):
        await here.request("t.len", bytes((32 << 20) + 1), 5.0)
    await here.publish("t.any", bytes(here.payload_max_bytes))
    assert await here.request("t.len", b"still here", 5.0) == b"10"


async def test_a_long_request_arrives_whole(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    seen: list[bytes] = []

    async def keep(payload: bytes) -> bytes:
        seen.append(payload)
        return str(len(payload)).encode()

    await there.serve("store", "n1", "0.1.0", [Endpoint("keep", "t.keep", keep)])
    half = here.payload_max_bytes // 2
    for size in (half, half + 1, here.payload_max_bytes, 5 * here.payload_max_bytes + 17):
        payload = bytes(range(256)) * (size // 256) + b"#" * (size % 256)
        assert await here.request("t.keep", payload, 10.0) == str(size).encode()
        assert seen.pop() == payload


async def test_long_requests_to_a_queue_group_reach_one_member_each(make_bus: MakeBus) -> None:
    here = await make_bus()
    for index in range(2):
        bus = await make_bus()
        endpoint = Endpoint("len", "t.longgroup", length, queue_group="plan")
        await bus.serve("conductor", f"c{index}", "0.1.0", [endpoint])
    size = 2 * here.payload_max_bytes
    replies = await asyncio.gather(
        *(here.request("t.longgroup", bytes(size + number), 20.0) for number in range(6))
    )
    assert replies == [str(size + number).encode() for number in range(6)]


async def test_a_long_request_to_nobody_fails_at_once(make_bus: MakeBus) -> None:
    here = await make_bus()
    with pytest.raises(NoResponder):
        await here.request("t.nobody", bytes(3 << 20), 30.0)


async def test_an_oversize_reply_is_a_typed_error(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()

    async def huge(payload: bytes) -> bytes:
        return bytes(there.payload_max_bytes + 1)

    await there.serve("store", "n1", "0.1.0", [Endpoint("huge", "t.huge", huge)])
    with pytest.raises(MoonpoolError) as caught:
        await here.request("t.huge", b"", 5.0)
    assert caught.value.code == "payload_too_large"
    assert caught.value.blame is Blame.CALLER


async def test_a_durable_publish_needs_a_stream(make_bus: MakeBus) -> None:
    here = await make_bus()
    with pytest.raises(NoResponder):
        await here.publish_durable("a.nostream.x", b"", 5.0)
    await here.ensure_stream("MP_TEST", ["a.audit.>"], 1 << 20)
    await here.ensure_stream("MP_TEST", ["a.audit.>", "a.more.>"], 2 << 20)
    await here.publish_durable("a.audit.x", b"1", 5.0)
    await here.publish_durable("a.more.x", b"2", 5.0)


async def _echoed(here: Bus, there: Bus) -> bool:
    """A round trip both ways: whatever was on its way has arrived."""
    service = await there.serve("probe", "p", "0.1.0", [Endpoint("echo", "probe.echo", echo)])
    answered = await here.request("probe.echo", b"1", 5.0) == b"1"
    await service.close()
    return answered
