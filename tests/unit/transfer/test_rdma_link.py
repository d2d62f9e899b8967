"""What a link makes of completions. The adapter is played; tests/rdma has real ones."""

from types import SimpleNamespace
from typing import Any

import pytest

from moonpool.transfer.base import Op
from moonpool.transfer.transports.fences import LeftBehind
from moonpool.transfer.transports.rdma_link import Link, LinkBroken

OK, DENIED = 0, 10


class Part:
    """A queue pair, channel or socket of which only the closing is seen."""

    def __init__(self, failing: bool = False) -> None:
        self.closed = False
        self.free = 8
        self._failing = failing

    def close(self) -> None:
        self.closed = True
        if self._failing:
            raise VerbsError


class VerbsError(Exception):
    pass


class Flying:
    """A flight with one chain posted."""

    def __init__(self, queue: Part) -> None:
        self.queue = queue
        self.job: Any = SimpleNamespace(slice=SimpleNamespace(payload=10), op=Op.WRITE)
        self.posted = 1
        self.unended = 1
        self.memory = None

    @property
    def done(self) -> bool:
        return not self.unended


class Line(Part):
    """A handshake socket; what was closed before it is seen by `Part`."""

    def __init__(self, says_goodbye: bool) -> None:
        super().__init__()
        self._says_goodbye = says_goodbye
        self.asked = 0

    def goodbye(self, timeout_s: float) -> bool:
        assert 0 < timeout_s < 0.5  # what a caller waits for who cancels
        assert not self.closed
        self.asked += 1
        return self._says_goodbye


def make_link(
    completions: list[tuple[int, int]], *, failing: bool = False, says_goodbye: bool = True
) -> tuple[Any, Any]:
    """A link with flights 1 and 2 under way, and these (id, status) to be reaped."""
    link: Any = Link.__new__(Link)
    queue = Part(failing)
    ended = [SimpleNamespace(wr_id=number, status=status) for number, status in completions]
    enums = SimpleNamespace(
        IBV_WC_SUCCESS=OK,
        IBV_WC_REM_ACCESS_ERR=DENIED,
        IBV_WC_RETRY_EXC_ERR=12,
        IBV_WC_WR_FLUSH_ERR=5,
    )
    link._enums = enums
    link._device = SimpleNamespace(
        verbs=SimpleNamespace(error=VerbsError), memory=SimpleNamespace(release=lambda held: None)
    )
    link._cq = SimpleNamespace(poll=lambda most: (len(ended), ended), close=lambda: None)
    link._queues, link._channel, link.control = [queue], Part(), Line(says_goodbye)
    link._name, link._left = b"link", LeftBehind()
    flights = [Flying(queue), Flying(queue)]
    link.flights = dict.fromkeys(flights)
    link._posted = {i: SimpleNamespace(flight=f, requests=1) for i, f in enumerate(flights, 1)}
    link._unposted = {}
    link.bytes_flying, link.close_failures = 20, 0
    return link, flights


def test_what_arrived_with_the_same_look_as_a_failure_has_arrived() -> None:
    link, (first, second) = make_link([(1, OK), (2, DENIED)])
    arrived: list[Any] = []
    with pytest.raises(LinkBroken) as raised:
        link.reap(arrived.append)
    assert arrived == [first.job]
    assert raised.value.culprit is second
    assert not raised.value.path_failed
    assert link.close() == [second]
    assert link.bytes_flying == 0


def test_room_comes_back_with_completions() -> None:
    link, (first, second) = make_link([(1, OK), (2, OK), (99, OK)])
    arrived: list[Any] = []
    assert link.reap(arrived.append)
    assert arrived == [first.job, second.job]
    assert first.queue.free == 10
    assert link.close() == []


def test_an_adapter_that_does_not_close_keeps_no_job_from_ending() -> None:
    link, flights = make_link([], failing=True)
    assert not link.reap(lambda job: None)
    assert link.close() == flights
    assert link.close_failures == 1


def test_writes_that_are_given_up_wait_for_the_owner_to_end_its_side() -> None:
    link, _ = make_link([])
    link.close()
    assert link.control.asked == 1
    assert link.control.closed
    assert not link._left


def test_where_the_owner_does_not_answer_it_is_told_before_anything_newer() -> None:
    link, _ = make_link([], says_goodbye=False)
    link.close()
    assert link._left.names() == [b"link"]
    other, _ = make_link([])
    other._left, other._told = link._left, set()
    assert not other._is_told
    other._told = {b"link"}
    assert other._is_told


def test_reads_and_what_was_not_posted_are_waited_for_by_nobody() -> None:
    link, (first, second) = make_link([], says_goodbye=False)
    first.job.op, second.posted = Op.READ, 0
    link.close()
    assert link.control.asked == 0
    assert not link._left
