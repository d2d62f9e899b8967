"""One job on its way through shared memory: its copy, between two looks at the owner's pulse."""

from collections.abc import Generator
from typing import Protocol

from moonpool.messages.errors import BugError
from moonpool.transfer.base import Op
from moonpool.transfer.copying import copy_slice, copy_steps
from moonpool.transfer.job import Job
from moonpool.transfer.transports.base import Reporter
from moonpool.transfer.transports.shm_attachment import Attachment
from moonpool.transfer.wire import refused


class Link(Protocol):
    """What the attachment belongs to. All of it from any thread."""

    name: str
    peer: str

    def enter(self, attachment: Attachment) -> Exception | None:
        """We are in the owner's memory until `leave`; why we should not be."""

    def problem(self, attachment: Attachment) -> Exception | None: ...

    def leave(self, attachment: Attachment) -> None: ...

    def finish(self, attachment: Attachment) -> Exception | None:
        """Leaves; why what was copied does not count."""


class Copying:
    """Its end is reported once, whoever runs it: at once, on a thread or in steps."""

    __slots__ = ("_attachment", "_job", "_link", "_reporter", "_steps")

    def __init__(self, link: Link, reporter: Reporter, job: Job, attachment: Attachment) -> None:
        self._link = link
        self._reporter = reporter
        self._job = job
        self._attachment = attachment
        self._steps: Generator[None, None, Exception | None] | None = None

    @property
    def in_steps(self) -> bool:
        return not self._job.checked  # a checksum is none

    def run_now(self) -> None:
        """On the loop."""
        if self._job.claim():
            self._reporter.report(self._job, self._copied(), self._link.name)

    def run(self) -> None:
        """On a thread."""
        if self._job.claim():
            self._reporter.report_from_thread(self._job, self._copied(), self._link.name)

    def _copied(self) -> Exception | None:
        """Why the copy does not count; None when every byte is where it belongs."""
        link, attachment = self._link, self._attachment
        problem = link.enter(attachment) or self._forbidden()
        if problem is None:
            try:
                problem = copy_slice(self._job, attachment.memory.address, link.peer)
            except Exception as error:  # noqa: BLE001  top of a thread: every job must end
                problem = BugError(f"copy failed: {error!r}")
            else:
                late = link.finish(attachment)
                return late if problem is None else problem
        link.leave(attachment)
        return problem

    def _forbidden(self) -> Exception | None:
        right = "r" if self._job.op is Op.READ else "w"
        return None if right in self._attachment.rights else refused(self._link.peer, "rights")

    def step(self) -> bool:
        """On the loop. Stops early when the owner is gone or has withdrawn its memory."""
        link, attachment = self._link, self._attachment
        if self._steps is None:
            if not self._job.claim():
                return False
            problem = link.enter(attachment) or self._forbidden()
            if problem is not None:
                return self._end(problem)
            self._steps = copy_steps(self._job, attachment.memory.address, link.peer)
        elif attachment.withdrawn or attachment.connection.lost:
            return self._end(link.problem(attachment))
        try:
            next(self._steps)
        except StopIteration as stopped:
            return self._end(stopped.value or link.problem(attachment))
        except Exception as error:  # noqa: BLE001  top of the loop's turn: every job must end
            return self._end(BugError(f"copy failed: {error!r}"))
        return True

    def _end(self, problem: Exception | None) -> bool:
        self._link.leave(self._attachment)
        self._reporter.report(self._job, problem, self._link.name)
        return False
