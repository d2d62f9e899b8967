"""A peer's memory seen without a copy, for a while: a lease on a mapping of the shm transport.

As long as a view is held, its owner's `withdraw` and `unregister` wait for it. It is let go by
`release`, and by itself when the lease is over, the grant expires or the engine closes. No kernel
takes a mapping away from who has it, so readers prove themselves: what was read counts when `check`
passes *afterwards*.
"""

import asyncio
import time
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from moonpool.transfer.errors import (
    BadTransfer,
    RegionClosed,
    TransferTimeout,
)
from moonpool.transfer.memory import Memory
from moonpool.transfer.remote import OpenedGrant
from moonpool.transfer.transports.base import Path
from moonpool.transfer.wire import refused


class Hold(Protocol):
    """A mapping that its owner has granted, and that we are in."""

    @property
    def memory(self) -> Memory: ...

    def problem(self) -> Exception | None:
        """Why what is read through it now does not count."""

    def let_go(self) -> None:
        """We are out of it: the owner is told if it waits. Idempotent."""


class MappedView:
    """Belongs to the loop of its engine. A context manager: leaving it releases."""

    def __init__(
        self, remote: OpenedGrant, hold: Hold, lease_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        grant = remote.grant
        self._segment = grant.segment
        self._hold = hold
        part = hold.memory.array[grant.offset : grant.offset + grant.length]
        self._view = memoryview(part).toreadonly()
        self._ended: Exception | None = None
        self._expires_unix_s = grant.expires_unix_s
        self._lease_s = lease_s
        left_s = self._expires_unix_s - time.time() if self._expires_unix_s else lease_s
        self._timer = loop.call_later(max(min(lease_s, left_s), 0.0), self._expire)

    @property
    def view(self) -> memoryview:
        """The bytes, read-only; the owner may be changing them. Raises like `check`."""
        self.check()
        return self._view

    def check(self) -> None:
        """Raises when what was read until now cannot be trusted: GrantRefused (expired, withdrawn),
        PeerLost, TransferTimeout (the lease is over), RegionClosed (released)."""
        problem = self._ended or self._hold.problem()
        if problem is not None:
            raise problem

    @property
    def open(self) -> bool:
        return self._ended is None

    def release(self) -> None:
        """Lets go. Idempotent."""
        self.end(RegionClosed("the mapping was released"))

    def end(self, why: Exception) -> None:
        """From now on `check` raises `why`, unless it ended before."""
        if self._ended is None:
            self._ended = why
            self._timer.cancel()
            self._hold.let_go()

    def _expire(self) -> None:
        expires = self._expires_unix_s
        if expires and time.time() >= expires - 0.001:
            self.end(refused(self._segment, "expired"))
        else:
            self.end(TransferTimeout(f"the lease of {self._lease_s:g} s is over"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


@runtime_checkable
class Mapper(Path, Protocol):
    """A path that can map what a peer granted."""

    def hold(self, remote: OpenedGrant) -> Hold:
        """Of a grant that was just used. Raises GrantRefused, PeerLost."""


def mapper_of(remote: OpenedGrant) -> Mapper:
    """Raises BadTransfer, GrantRefused."""
    grant = remote.grant
    if "r" not in grant.rights:
        raise refused(grant.segment, "rights")
    for path in remote.paths:
        if isinstance(path, Mapper):
            return path
    raise BadTransfer(f"no shared memory with {grant.segment}: only peers of one host can map")
