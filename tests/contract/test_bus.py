"""The bus contract: every promise of `bus/base.py`, over a real NATS server and in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from moonpool.bus import (
    Bus,
    BusClosed,
    Endpoint,
    MemoryBroker,
    MemoryBus,
    NatsBus,
    NoResponder,
    PayloadTooLarge,
    RequestTimeout,
)
from moonpool.messages import Blame, BugError, CapacityError, CorruptionError, MoonpoolError
from tests.support.nats_server import NatsServer
from tests.support.until import until

MakeBus = Callable[[], Awaitable[Bus]]


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(params=["memory", "nats"])
async def make_bus(request: pytest.FixtureRequest) -> AsyncIterator[MakeBus]:
    """Makes any number of buses that hear one another; closes them afterwards."""
    broker = MemoryBroker()
    made: list[Bus] = []

    async def make() -> Bus:
        bus: Bus
        if request.param == "memory":
            bus = MemoryBus(broker)
        else:
            server: NatsServer = request.getfixturevalue("nats_server")
            bus = await NatsBus.connect(server.url)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        await bus.close()


async def echo(payload: bytes) -> bytes:
    return payload


async def length(payload: bytes) -> bytes:
    return str(len(payload)).encode()


async def test_a_request_gets_the_handlers_reply(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    await there.serve("store", "n1", "0.1.0", [Endpoint("echo", "t.echo", echo)])
    assert await here.request("t.echo", b"hello", 5.0) == b"hello"
    assert await here.request("t.echo", b"", 5.0) == b""


async def test_many_requests_at_once_get_their_own_replies(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    await there.serve("store", "n1", "0.1.0", [Endpoint("echo", "t.many", echo)])
    payloads = [str(number).encode() for number in range(200)]
    replies = await asyncio.gather(*(here.request("t.many", each, 10.0) for each in payloads))
    assert replies == payloads


async def test_a_request_to_nobody_fails_at_once(make_bus: MakeBus) -> None:
    here = await make_bus()
    started = asyncio.get_running_loop().time()
    with pytest.raises(NoResponder) as caught:
        await here.request("t.nobody", b"", 30.0)
    assert asyncio.get_running_loop().time() - started < 5.0
    assert caught.value.elsewhere


async def test_a_closed_service_is_nobody(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    service = await there.serve("store", "n1", "0.1.0", [Endpoint("echo", "t.gone", echo)])
    assert await here.request("t.gone", b"x", 5.0) == b"x"
    await service.close()
    await service.close()
    with pytest.raises(NoResponder):
        await here.request("t.gone", b"x", 5.0)


async def test_a_slow_handler_ends_in_a_timeout(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    hold = asyncio.Event()

    async def slow(payload: bytes) -> bytes:
        await hold.wait()
        return payload

    await there.serve("store", "n1", "0.1.0", [Endpoint("slow", "t.slow", slow)])
    with pytest.raises(RequestTimeout):
        await here.request("t.slow", b"", 0.05)
    hold.set()


@pytest.mark.parametrize(
    "error",
    [
        CapacityError("no slot free", code="kv_space", retry_after_s=1.5, elsewhere=True),
        CorruptionError("block 3 of layer 2 不对\nsecond line", code="corrupt"),
        BugError("broken"),
    ],
)
async def test_a_typed_error_arrives_as_it_was_raised(
    make_bus: MakeBus, error: MoonpoolError
) -> None:
    here, there = await make_bus(), await make_bus()

    async def refuse(payload: bytes) -> bytes:
        raise error

    await there.serve("store", "n1", "0.1.0", [Endpoint("no", "t.no", refuse)])
    with pytest.raises(type(error)) as caught:
        await here.request("t.no", b"", 5.0)
    assert caught.value.info() == error.info()


async def test_an_unexpected_error_arrives_as_a_bug_of_the_responder(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = await make_bus(), await make_bus()

    async def broken(payload: bytes) -> bytes:
        raise ZeroDivisionError("oops")

    service = await there.serve("store", "n1", "0.1.0", [Endpoint("no", "t.broken", broken)])
    with pytest.raises(BugError, match="oops"):
        await here.request("t.broken", b"", 5.0)
    assert service.stats()["errors"] == 1
    assert "oops" in caplog.text


async def test_requests_run_side_by_side_up_to_the_limit_and_are_refused_beyond_the_queue(
    make_bus: MakeBus,
) -> None:
    here, there = await make_bus(), await make_bus()
    running, most, hold = 0, 0, asyncio.Event()

    async def work(payload: bytes) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await hold.wait()
        running -= 1
        return payload

    endpoint = Endpoint("work", "t.work", work, concurrency_max=3, pending_max=2)
    service = await there.serve("store", "n1", "0.1.0", [endpoint])
    asked = [asyncio.create_task(here.request("t.work", b"", 20.0)) for _ in range(7)]
    await until(lambda: service.stats()["refused"] == 2)
    assert running == 3
    hold.set()
    results = await asyncio.gather(*asked, return_exceptions=True)
    refused = [each for each in results if isinstance(each, CapacityError)]
    assert len(refused) == 2
    assert all(each.code == "busy" and each.elsewhere for each in refused)
    assert results.count(b"") == 5
    assert most == 3


async def test_a_queue_group_gives_each_request_to_one_member(make_bus: MakeBus) -> None:
    here = await make_bus()
    served = [0, 0]

    def counting(index: int) -> Callable[[bytes], Awaitable[bytes]]:
        async def serve(payload: bytes) -> bytes:
            served[index] += 1
            return payload

        return serve

    for index in range(2):
        bus = await make_bus()
        endpoint = Endpoint("plan", "t.group", counting(index), queue_group="plan")
        await bus.serve("conductor", f"c{index}", "0.1.0", [endpoint])
    for _ in range(60):
        await here.request("t.group", b"", 5.0)
    assert sum(served) == 60
    assert min(served) > 0


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


async def test_a_cancelled_request_frees_its_caller_at_once(make_bus: MakeBus) -> None:
    here, there = await make_bus(), await make_bus()
    hold = asyncio.Event()

    async def slow(payload: bytes) -> bytes:
        await hold.wait()
        return payload

    service = await there.serve("store", "n1", "0.1.0", [Endpoint("slow", "t.cancel", slow)])
    asked = asyncio.create_task(here.request("t.cancel", b"", 30.0))
    await until(lambda: service.stats()["running"] == 1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    hold.set()
    await until(lambda: service.stats()["running"] == 0)


async def test_closing_a_service_refuses_who_waits_and_lets_who_runs_finish(
    make_bus: MakeBus,
) -> None:
    here, there = await make_bus(), await make_bus()
    hold = asyncio.Event()

    async def slow(payload: bytes) -> bytes:
        await hold.wait()
        return payload

    endpoint = Endpoint("slow", "t.drain", slow, concurrency_max=1)
    service = await there.serve("store", "n1", "0.1.0", [endpoint])
    asked = [asyncio.create_task(here.request("t.drain", b"x", 30.0)) for _ in range(2)]
    await until(lambda: service.stats()["waiting"] == 1)
    closing = asyncio.create_task(service.close())
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    refused = done.pop().exception()
    assert isinstance(refused, MoonpoolError)
    assert refused.code == "draining"
    hold.set()
    await closing
    assert b"x" in await asyncio.gather(*asked, return_exceptions=True)


async def test_a_closed_bus_says_so(make_bus: MakeBus) -> None:
    here = await make_bus()
    connected = [here.is_connected]
    await here.close()
    await here.close()
    connected.append(here.is_connected)
    assert connected == [True, False]
    with pytest.raises(BusClosed):
        await here.publish("t.x", b"")
    with pytest.raises(BusClosed):
        await here.request("t.x", b"", 1.0)


async def _echoed(here: Bus, there: Bus) -> bool:
    """A round trip both ways: whatever was on its way has arrived."""
    service = await there.serve("probe", "p", "0.1.0", [Endpoint("echo", "probe.echo", echo)])
    answered = await here.request("probe.echo", b"1", 5.0) == b"1"
    await service.close()
    return answered
