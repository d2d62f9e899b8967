"""One slice of a batch on its way: what a transport runs, and how it may be stopped.

A job belongs to its engine's event loop. A thread that wants to run it must `claim` it first; from
then until the transport reports its end, only that thread touches its memory.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer.base import Op, Priority
from moonpool.transfer.regions import LocalRegion, Pass
from moonpool.transfer.slices import Slice

if TYPE_CHECKING:
    from moonpool.transfer.batch import TransferBatch
    from moonpool.transfer.remote import OpenedGrant


COLLISIONS_MAX = 32  # then a path that is cut for others' sake has failed all the same


class PathFailed(Exception):
    """This path did not work; another may. `cause` is what the caller sees if none does."""

    def __init__(self, cause: MoonpoolError, *, collateral: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.collateral = collateral  # the path was cut for another job's sake: try it again


class Runner(Protocol):
    """Whatever runs a job at the moment."""

    def cut(self, job: "Job") -> None:
        """Ends `job` within microseconds if it still runs it. From any thread."""


class Carrier(Protocol):
    """Holds a job while one of several ways runs it. Of the loop."""

    def ended(self, job: "Job", error: Exception | None) -> bool:
        """A way has ended with it. True: another has it now, or will; False: it is over here."""

    def has_other(self, job: "Job") -> bool:
        """Whether a way that does not have it is not at rest."""

    def forget(self, job: "Job") -> None:
        """Nobody wants it any more, and it runs nowhere."""


class Job:
    __slots__ = (
        "_tokens",
        "at_path",
        "batch",
        "carrier",
        "checked",
        "collisions",
        "expires_s",
        "held",
        "indices",
        "inline",
        "local",
        "op",
        "priority",
        "remote",
        "runner",
        "slice",
        "started_s",
        "stopped",
        "tries",
    )

    def __init__(
        self,
        batch: "TransferBatch",
        op: Op,
        local: LocalRegion,
        remote: "OpenedGrant",
        piece: Slice,
        indices: Sequence[int],
        priority: Priority,
        expires_s: float,
    ) -> None:
        self.batch = batch
        self.op = op
        self.local = local
        self.remote = remote
        self.slice = piece
        self.indices = indices  # requests of the batch that have bytes in this slice
        self.priority = priority
        self.expires_s = expires_s  # monotonic
        self.inline = False  # small enough to be copied without a thread
        self.checked = False  # its bytes are compared by checksum before it counts
        self.held: Pass | None = None
        self.runner: Runner | None = None
        self.carrier: Carrier | None = None
        self.stopped: MoonpoolError | None = None  # why nobody wants the result any more
        self.at_path = 0  # index into remote.paths
        self.tries = 0  # on this path
        self.collisions = 0  # times the path was cut for another job's sake
        self.started_s = 0.0
        self._tokens = [None]

    def claim(self) -> bool:
        """True for exactly one caller: a thread that will run it, or the loop that withdraws it."""
        try:
            self._tokens.pop()
        except IndexError:
            return False
        self.started_s = time.monotonic()
        return True

    def unclaim(self) -> None:
        """It did not run after all and may be claimed again."""
        self.runner = None
        self._tokens.append(None)

    @property
    def claimed(self) -> bool:
        return not self._tokens

    @property
    def elsewhere(self) -> bool:
        """Whether another way is left should this one not work."""
        if self.at_path + 1 < len(self.remote.paths):
            return True
        return self.carrier is not None and self.carrier.has_other(self)

    def cut(self, reason: MoonpoolError) -> None:
        """Nobody wants it any more: whoever runs it stops soon and reports its end."""
        self.stopped = self.stopped or reason
        if (runner := self.runner) is not None:
            runner.cut(self)
