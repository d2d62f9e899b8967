"""A mapping of shm that somebody reads in place: the owner waits for it as it does for a copy."""

from typing import Protocol

from moonpool.transfer.job import PathFailed
from moonpool.transfer.memory import Memory
from moonpool.transfer.transports.shm_attachment import Attachment


class Holder(Protocol):
    """The link that the mapping belongs to."""

    def problem(self, attachment: Attachment) -> Exception | None: ...

    def leave(self, attachment: Attachment) -> None: ...


class ShmHold:
    """Made by a link that has entered the attachment; `let_go` leaves it."""

    def __init__(self, link: Holder, attachment: Attachment) -> None:
        self._link = link
        self._attachment = attachment
        self._left = False

    @property
    def memory(self) -> Memory:
        return self._attachment.memory

    def problem(self) -> Exception | None:
        """Why what is read through it now does not count."""
        problem = self._link.problem(self._attachment)
        return problem.cause if isinstance(problem, PathFailed) else problem

    def let_go(self) -> None:
        """Idempotent."""
        if not self._left:
            self._left = True
            self._link.leave(self._attachment)
