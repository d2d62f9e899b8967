"""An event loop that stays awake for what comes within microseconds, and what it owes others."""

import asyncio

import pytest

from moonpool.transfer.lookout import Lookout
from moonpool.transfer.wakeful import Wakeful

TURN_S = 5e-6
STAY_S = 100e-6


class Clock:
    """Goes on by a turn with each look at it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        self.now_s += TURN_S
        return self.now_s


@pytest.fixture
def lookout() -> Lookout:
    return Lookout(now=Clock(), running=lambda: 1, cpus=2)


async def test_everything_on_the_loop_goes_on_while_it_stays_awake(lookout: Lookout) -> None:
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    wakeful = Wakeful(loop, lookout)
    wakeful.stay(STAY_S)
    loop.call_soon(turn)
    for _ in range(int(STAY_S / TURN_S) + 2):
        await asyncio.sleep(0)
    assert turns >= STAY_S / TURN_S


async def test_it_sleeps_again_when_nothing_comes_and_that_counts_as_waste(
    lookout: Lookout,
) -> None:
    wakeful = Wakeful(asyncio.get_running_loop(), lookout)
    wakeful.stay(STAY_S)
    assert not lookout.begin(0.0)  # one looks at a time
    for _ in range(int(STAY_S / TURN_S) + 2):
        await asyncio.sleep(0)
    assert lookout.begin(0.0)
    assert lookout.stats()["looks_seen"] == 0


async def test_what_comes_ends_it_at_once(lookout: Lookout) -> None:
    wakeful = Wakeful(asyncio.get_running_loop(), lookout)
    for number in range(3):
        wakeful.stay(STAY_S)
        wakeful.came()
        wakeful.came()
        assert lookout.stats()["looks_seen"] == number + 1
    assert lookout.begin(0.0)


async def test_where_looking_costs_others_the_cpu_it_sleeps_at_once() -> None:
    lookout = Lookout(now=Clock(), running=lambda: 9, cpus=2)
    wakeful = Wakeful(asyncio.get_running_loop(), lookout)
    looked = 0
    for _ in range(500):
        wakeful.stay(STAY_S)
        before_s = lookout.now()
        await asyncio.sleep(0)
        looked += lookout.now() - before_s > 3 * TURN_S
    assert lookout.stats()["look_rests"] > 0
    assert looked < 50


async def test_to_stay_while_it_stays_is_one_stay(lookout: Lookout) -> None:
    wakeful = Wakeful(asyncio.get_running_loop(), lookout)
    for _ in range(5):
        wakeful.stay(STAY_S)
    assert lookout.stats()["looks"] == 1
    wakeful.came()
