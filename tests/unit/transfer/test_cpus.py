"""Where two threads of one host run while they hand much to one another."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moonpool.transfer.lookout import Lookout
from moonpool.transfer.transports import cpus
from moonpool.transfer.transports.cpus import HOLD_S, REST_S, Seat


class World:
    """A machine, and a thread that the kernel has put on one of its CPUs."""

    def __init__(self, count: int = 2, running: int = 2, *, enabled: bool = True) -> None:
        self.now_s = 100.0
        self.at = 0
        self.may = set(range(count))
        self.running = running
        lookout = Lookout(enabled, running=lambda: self.running, cpus=count)
        self.seat = Seat(
            lookout,
            now=lambda: self.now_s,
            current=lambda: self.at,
            allowed=lambda: set(self.may),
            bind=self._bind,
        )

    def _bind(self, to: set[int]) -> None:
        if not to:
            raise OSError("no CPU is left")
        self.may = set(to)
        if self.at not in to:
            self.at = min(to)


class Heard(socket.socket):
    """Whose last bytes were sent from a CPU."""

    sender = 0

    def getsockopt(self, *given: int) -> int:  # type: ignore[override]
        return self.sender


@contextmanager
def heard_from(cpu: int) -> Iterator[Heard]:
    with Heard() as sock:
        sock.sender = cpu
        yield sock


def test_who_stays_is_held_where_it_is_for_a_while() -> None:
    world = World()
    world.at = 1
    world.seat.stay()
    assert world.may == {1}
    world.now_s += HOLD_S + 0.1
    world.seat.pause()
    assert world.may == {0, 1}


def test_who_leaves_goes_where_its_sender_is_not() -> None:
    world = World(4)
    world.at = 2
    with heard_from(2) as sock:
        world.seat.leave(sock)
    assert world.may == {0, 1, 3}
    assert world.at != 2


def test_who_is_elsewhere_already_is_left_alone() -> None:
    world = World()
    with heard_from(1) as sock:
        world.seat.leave(sock)
    assert world.may == {0, 1}


def test_a_sender_that_follows_is_left_again() -> None:
    world = World()
    with heard_from(0) as sock:
        world.seat.leave(sock)
        assert world.at == 1
        sock.sender = 1
        world.seat.leave(sock)
    assert world.may == {0}


def test_a_seat_ends_by_itself_once_the_sender_is_elsewhere() -> None:
    world = World()
    with heard_from(0) as sock:
        world.seat.leave(sock)
        world.now_s += HOLD_S / 2
        world.seat.leave(sock)
        assert world.may == {1}
        world.now_s += HOLD_S
        world.seat.leave(sock)
    assert world.may == {0, 1}


@pytest.mark.parametrize(
    "world",
    [World(running=3), World(1), World(cpus.SMALL_CPUS + 1), World(enabled=False)],
    ids=["crowded", "one CPU", "many CPUs", "switched off"],
)
def test_nobody_takes_a_seat_where_that_could_harm(world: World) -> None:
    before = set(world.may)
    world.seat.stay()
    with heard_from(0) as sock:
        world.seat.leave(sock)
    assert world.may == before


def test_a_crowd_is_looked_at_again_after_a_rest() -> None:
    world = World(running=3)
    world.seat.stay()
    world.running = 2
    world.seat.stay()
    assert world.may == {0, 1}
    world.now_s += REST_S
    world.seat.stay()
    assert world.may == {0}


def test_a_real_thread_gets_back_what_it_had() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def run() -> None:
        seat = Seat(Lookout(running=lambda: 1, cpus=2))
        seat.stay()
        seen.append(os.sched_getaffinity(0))
        seat.rise()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[0] <= before
    assert seen[1] == before
    assert os.sched_getaffinity(0) == before
