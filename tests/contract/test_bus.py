"""The bus contract, requests: over a real NATS server and in memory."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from moonpool.bus import BusClosed, Endpoint, NoResponder, RequestTimeout
from moonpool.messages import BugError, CapacityError, CorruptionError, MoonpoolError
from tests.support.buses import MakeBus, echo
from tests.support.until import until


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
