"""A copy in steps ends once, for the right reason, whatever happens between two of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moonpool.messages.errors import BugError
from moonpool.transfer.base import Op
from moonpool.transfer.copying import STEP_BYTES
from moonpool.transfer.errors import GrantRefused, PeerLost
from moonpool.transfer.job import PathFailed
from moonpool.transfer.slices import one
from moonpool.transfer.transports import shm_copying
from moonpool.transfer.transports.shm_copying import Copying
from moonpool.transfer.wire import refused


class Link:
    """Counts who is inside."""

    name, peer = "shm", "far"

    def __init__(self) -> None:
        self.inside = 0

    def enter(self, attachment: Any) -> Exception | None:
        self.inside += 1
        return self.problem(attachment)

    def problem(self, attachment: Any) -> Exception | None:
        if attachment.connection.lost:
            return PathFailed(PeerLost("far went away"))
        return refused("far", "unknown") if attachment.withdrawn else None

    def finish(self, attachment: Any) -> Exception | None:
        self.inside -= 1
        return self.problem(attachment)

    def leave(self, attachment: Any) -> None:
        self.inside -= 1


class Case:
    """Four steps from a peer's memory to ours."""

    def __init__(self, *, rights: str = "r") -> None:
        self.here = np.zeros(4 * STEP_BYTES, np.uint8)
        self.there = np.ones(4 * STEP_BYTES, np.uint8)
        self.link, self.ends = Link(), []  # type: ignore[var-annotated]
        self.job: Any = SimpleNamespace(
            op=Op.READ,
            slice=one(0, 0, self.here.nbytes),
            local=SimpleNamespace(address=int(self.here.ctypes.data)),
            remote=SimpleNamespace(grant=SimpleNamespace(offset=0)),
            checked=False,
            stopped=None,
            claim=lambda: True,
        )
        self.attachment: Any = SimpleNamespace(
            memory=SimpleNamespace(address=int(self.there.ctypes.data)),
            rights=rights,
            withdrawn=False,
            connection=SimpleNamespace(lost=False),
        )
        self.copying = Copying(self.link, self, self.job, self.attachment)

    def report(self, job: Any, error: Exception | None, path: str) -> None:
        assert self.link.inside == 0  # it is out of the memory first
        self.ends.append(error)

    report_from_thread = report

    @property
    def steps_copied(self) -> int:
        return int(self.here.sum()) // STEP_BYTES


def test_a_copy_left_alone_arrives() -> None:
    case = Case()
    steps = 1
    while case.copying.step():
        assert case.steps_copied == steps
        steps += 1
    assert (steps, case.steps_copied, case.ends) == (4, 4, [None])


@pytest.mark.parametrize(
    ("withdrawn", "lost", "error"), [(True, False, GrantRefused), (False, True, PathFailed)]
)
def test_it_stops_when_the_owner_takes_its_memory_back_or_dies(
    withdrawn: bool, lost: bool, error: type[Exception]
) -> None:
    case = Case()
    assert case.copying.step()
    case.attachment.withdrawn, case.attachment.connection.lost = withdrawn, lost
    assert not case.copying.step()
    assert case.steps_copied == 1
    (end,) = case.ends
    assert isinstance(end, error)


def test_it_needs_the_right() -> None:
    case = Case(rights="w")
    assert not case.copying.step()
    assert (case.steps_copied, case.link.inside) == (0, 0)
    assert isinstance(case.ends[0], GrantRefused)


def test_a_fault_of_ours_ends_the_job_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        yield
        raise ValueError("broken")

    monkeypatch.setattr(shm_copying, "copy_steps", broken)
    case = Case()
    assert case.copying.step()
    assert not case.copying.step()
    assert isinstance(case.ends[0], BugError)
