"""Virtual time: order, nesting, cancellation."""

import asyncio

import pytest

from moonpool.clock import VirtualClock


async def test_sleepers_wake_in_order_of_their_deadlines() -> None:
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("a2", 1.0)):
            group.create_task(sleeper(name, seconds))
        await clock.advance(5.0)
    assert woken == [("a", 1.0), ("a2", 1.0), ("b", 2.0), ("c", 3.0)]
    assert clock.now() == 5.0


async def test_who_sleeps_again_while_time_advances_wakes_within_the_same_advance() -> None:
    clock = VirtualClock()
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(1.0)
            ticks.append(clock.now())

    task = asyncio.create_task(ticker())
    await clock.advance(3.5)
    assert ticks == [1.0, 2.0, 3.0]
    task.cancel()
    await asyncio.wait([task])
    assert clock.stats()["sleepers"] == 0
    assert clock.next_deadline() is None
    await clock.advance(10.0)
    assert ticks == [1.0, 2.0, 3.0]


async def test_time_stands_still_unless_advanced_and_never_goes_back() -> None:
    clock = VirtualClock(start_s=100.0)
    wall = clock.unix()
    await clock.sleep(0)
    assert clock.now() == 100.0
    with pytest.raises(ValueError, match="back"):
        await clock.advance(-1.0)
    await clock.advance(0.25)
    assert clock.unix() - wall == 0.25
