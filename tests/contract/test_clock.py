"""The clock contract, over real and virtual time."""

import asyncio

import pytest

from moonpool.clock import Clock, RealClock, VirtualClock


async def _pass_time(clock: Clock, seconds: float) -> None:
    if isinstance(clock, VirtualClock):
        await clock.advance(seconds)
    else:
        await clock.sleep(seconds)


@pytest.fixture(params=[RealClock, VirtualClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


async def test_a_sleep_is_never_short(clock: Clock) -> None:
    before = clock.now()
    sleeping = asyncio.create_task(clock.sleep(0.02))
    await _pass_time(clock, 0.03)
    await sleeping
    assert clock.now() - before >= 0.02 - 1e-9


async def test_time_never_goes_back(clock: Clock) -> None:
    last, last_unix = clock.now(), clock.unix()
    for _ in range(5):
        await _pass_time(clock, 0.001)
        assert clock.now() >= last
        assert clock.unix() >= last_unix
        last, last_unix = clock.now(), clock.unix()
    assert last_unix > 1.6e9


async def test_a_sleep_of_nothing_returns(clock: Clock) -> None:
    await asyncio.wait_for(clock.sleep(0), 1.0)
    await asyncio.wait_for(clock.sleep(-1), 1.0)


async def test_a_sleep_can_be_cancelled(clock: Clock) -> None:
    sleeping = asyncio.create_task(clock.sleep(1000.0))
    await asyncio.sleep(0)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
