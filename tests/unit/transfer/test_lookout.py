"""What looking for the next frame may cost, and when it is given up."""

from collections.abc import Callable

import pytest

from moonpool.transfer import lookout
from moonpool.transfer.lookout import LOOK_MAX_S, Lookout, Watch

GLANCE_S = 2e-6


class World:
    """A clock that goes on by a glance with each, and a machine with so many threads at work."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.running = 2
        self.glances = 0
        self.held_up_s = 0.0  # by others, once per glance

    def lookout(self, cpus: int = 2, enabled: bool = True) -> Lookout:
        return Lookout(enabled, now=lambda: self.now_s, running=lambda: self.running, cpus=cpus)

    def sees_after(self, seconds: float) -> Callable[[], bool]:
        there_s = self.now_s + seconds

        def see() -> bool:
            self.glances += 1
            self.now_s += GLANCE_S + self.held_up_s
            return self.now_s >= there_s

        return see

    def comes_after(self, watch: Watch, seconds: float) -> bool:
        """Whether it was seen without sleeping."""
        watch.begin()
        start_s = self.now_s
        seen = watch.look(self.sees_after(seconds))
        self.now_s = max(self.now_s, start_s + seconds)
        watch.came()
        return seen


@pytest.fixture
def world() -> World:
    return World()


def test_what_came_soon_a_few_times_is_looked_for(world: World) -> None:
    watch = Watch(world.lookout())
    seen = [world.comes_after(watch, 30e-6) for _ in range(lookout.SURE + 5)]
    assert seen == [False] * lookout.SURE + [True] * 5


def test_what_comes_late_is_never_looked_for(world: World) -> None:
    made = world.lookout()
    watch = Watch(made)
    assert not any(world.comes_after(watch, 2 * LOOK_MAX_S) for _ in range(100))
    assert made.stats()["looks"] == 0


def test_when_things_begin_to_come_late_it_stops_after_two(world: World) -> None:
    made = world.lookout()
    watch = Watch(made)
    for _ in range(20):
        world.comes_after(watch, 30e-6)
    before = made.stats()["looks"]
    for _ in range(50):
        world.comes_after(watch, 0.01)
    assert made.stats()["looks"] - before == 2


def test_a_look_lasts_about_twice_what_it_used_to_take(world: World) -> None:
    watch = Watch(world.lookout())
    for _ in range(40):
        world.comes_after(watch, 10e-6)
    start_s = world.now_s
    watch.begin()
    assert not watch.look(world.sees_after(1.0))
    assert 15e-6 < world.now_s - start_s < 30e-6


def test_looks_that_see_nothing_take_a_fiftieth_of_the_time_at_most(world: World) -> None:
    made = world.lookout()
    looked_s, start_s = 0.0, world.now_s
    while world.now_s < start_s + 3.0:
        before_s = world.now_s
        made.look(world.sees_after(1.0), LOOK_MAX_S)
        looked_s += world.now_s - before_s
        world.now_s += 150e-6
    whole_s = world.now_s - start_s
    assert 0.5 * lookout.WASTE < looked_s / whole_s < 1.1 * lookout.WASTE


def test_looks_that_see_what_they_look_for_cost_no_credit(world: World) -> None:
    made = world.lookout()
    assert all(made.look(world.sees_after(50e-6), LOOK_MAX_S) for _ in range(3_000))


def test_where_others_want_the_cpus_it_rests_longer_and_longer(world: World) -> None:
    made = world.lookout(cpus=2)
    world.running = 3
    looked_s, start_s = 0.0, world.now_s
    while world.now_s < start_s + 3.0:
        before_s = world.now_s
        made.look(world.sees_after(50e-6), LOOK_MAX_S)
        looked_s += world.now_s - before_s
        world.now_s += 50e-6
    assert looked_s < 0.001  # of three seconds
    assert made.stats()["look_rests"] < 60


def test_a_crowd_of_a_moment_is_no_reason_to_rest(world: World) -> None:
    made = world.lookout(cpus=2)
    counts = iter([3, 2])
    made._running = lambda: next(counts)
    assert made.look(world.sees_after(90e-6), LOOK_MAX_S)
    assert made.stats()["look_rests"] == 0
    assert next(counts, None) is None  # it did count again


def test_how_late_is_too_late_is_up_to_the_user(world: World) -> None:
    watch = Watch(world.lookout(), 4 * LOOK_MAX_S)
    seen = [world.comes_after(watch, 3 * LOOK_MAX_S) for _ in range(lookout.SURE + 5)]
    assert seen[-1]
    assert LOOK_MAX_S < watch.usual_s <= 4 * LOOK_MAX_S


def test_when_they_are_gone_it_looks_again(world: World) -> None:
    made = world.lookout(cpus=2)
    world.running = 3
    for _ in range(20_000):
        made.look(world.sees_after(50e-6), LOOK_MAX_S)
        world.now_s += 50e-6
    world.running = 2
    world.now_s += lookout.REST_MAX_S
    assert all(made.look(world.sees_after(50e-6), LOOK_MAX_S) for _ in range(10))


def test_who_is_held_up_twice_in_short_leaves_the_cpu_to_others(world: World) -> None:
    made = world.lookout(cpus=64)
    world.held_up_s = 3e-3
    assert not made.look(world.sees_after(1.0), LOOK_MAX_S)
    assert not made.look(world.sees_after(1.0), LOOK_MAX_S)
    assert world.glances == 2
    world.held_up_s = 0.0
    assert not made.look(world.sees_after(0.0), LOOK_MAX_S)  # it rests
    world.now_s += 2 * lookout.REST_MIN_S
    assert made.look(world.sees_after(0.0), LOOK_MAX_S)


def test_a_pause_now_and_then_is_no_reason_to_rest(world: World) -> None:
    made = world.lookout(cpus=64)
    for _ in range(20):
        world.held_up_s = 3e-3
        assert not made.look(world.sees_after(1.0), LOOK_MAX_S)
        world.held_up_s = 0.0
        assert made.look(world.sees_after(0.0), LOOK_MAX_S)
        world.now_s += 2 * lookout.HELD_AGAIN_S
    assert made.stats()["look_rests"] == 0


def test_one_looks_at_a_time(world: World) -> None:
    made = world.lookout()
    inner: list[bool] = []

    def see() -> bool:
        inner.append(made.look(lambda: True, LOOK_MAX_S))
        return True

    assert made.look(see, LOOK_MAX_S)
    assert inner == [False]
    assert made.look(lambda: True, LOOK_MAX_S)


def test_what_goes_wrong_while_looking_is_told_and_leaves_no_lock(world: World) -> None:
    made = world.lookout()

    def see() -> bool:
        raise OSError("reset")

    with pytest.raises(OSError, match="reset"):
        made.look(see, LOOK_MAX_S)
    assert made.look(lambda: True, LOOK_MAX_S)


@pytest.mark.parametrize(("cpus", "enabled"), [(1, True), (8, False)])
def test_with_one_cpu_or_switched_off_nobody_looks(world: World, cpus: int, enabled: bool) -> None:
    made = world.lookout(cpus, enabled)
    assert not made.look(world.sees_after(0.0), LOOK_MAX_S)
    assert world.glances == 0


def test_the_kernel_tells_how_many_threads_run() -> None:
    load = lookout._Load()
    assert 1 <= load.running() < 10_000
    load.close()
    assert load.running() > 10_000  # what nobody tells is taken for a crowd
