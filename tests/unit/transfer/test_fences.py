import threading
from collections.abc import Callable

from moonpool.transfer.transports.fences import (
    FENCED_MAX,
    LEFT_MAX,
    Fences,
    LeftBehind,
    new_name,
)
from tests.support.until import until


def nothing() -> None:
    return


def test_a_fence_waits_until_the_stream_has_left_memory() -> None:
    fences, old, own = Fences(), new_name(), new_name()
    cut, gone = threading.Event(), threading.Event()
    assert fences.enter(old, cut.set)
    assert fences.enter(own, nothing)

    def serve() -> None:
        assert cut.wait(10.0)
        gone.set()
        fences.leave(old)

    thread = threading.Thread(target=serve)
    thread.start()
    assert fences.fence(old, own)
    assert gone.is_set()
    thread.join()


def test_a_stream_that_does_not_leave_in_time_fails_the_fence() -> None:
    fences, old, own = Fences(), new_name(), new_name()
    assert fences.enter(old, nothing)
    assert not fences.fence(old, own, wait_s=0.01)


def test_a_name_that_was_given_up_before_it_was_met_is_not_served() -> None:
    fences, old, own = Fences(), new_name(), new_name()
    assert fences.fence(old, own)
    assert not fences.enter(old, nothing)


def test_no_two_streams_bear_one_name() -> None:
    fences, name = Fences(), new_name()
    assert fences.enter(name, nothing)
    assert not fences.enter(name, nothing)


async def test_two_streams_that_fence_each_other_do_not_wait_for_ever() -> None:
    fences, one, two = Fences(), new_name(), new_name()
    assert fences.enter(one, nothing)
    assert fences.enter(two, nothing)
    said: list[bool] = []

    def ask(name: bytes, own: bytes) -> Callable[[], None]:
        return lambda: said.append(fences.fence(name, own))

    threads = [threading.Thread(target=ask(one, two)), threading.Thread(target=ask(two, one))]
    for thread in threads:
        thread.start()
    await until(lambda: bool(said))
    fences.leave(one)
    fences.leave(two)
    for thread in threads:
        thread.join()
    assert len(said) == 2
    assert not all(said)


def test_a_stream_does_not_fence_itself() -> None:
    fences, own = Fences(), new_name()
    assert fences.enter(own, nothing)
    assert not fences.fence(own, own)


def test_what_is_remembered_is_bounded() -> None:
    fences, left = Fences(), LeftBehind()
    for _ in range(FENCED_MAX + 10):
        fences.fence(new_name(), b"")
    assert len(fences._fenced) == FENCED_MAX
    for _ in range(LEFT_MAX + 10):
        left.add(new_name())
    assert len(left.names()) == LEFT_MAX
    left.settled(left.names())
    assert not left
