"""The transfer seam: bulk bytes between registered memory of two processes.

Vocabulary of the field: register memory, then READ or WRITE between (region, offset, length)
pairs in batches; each ends in success or in a typed error within its deadline.
`TransferEngine` (engine.py) is what programs use; it chooses among `transports/` per peer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.latencies import Latencies


class Op(StrEnum):
    READ = "read"  # remote -> local
    WRITE = "write"  # local -> remote


class Priority(StrEnum):
    FOREGROUND = "foreground"  # a request waits for it
    BACKGROUND = "background"  # replication, demotion, write-behind


class Region(Protocol):
    """Registered local memory."""

    @property
    def length(self) -> int: ...

    @property
    def closing(self) -> bool:
        """It is unregistered, or about to be: nothing new begins."""

    @property
    def view(self) -> memoryview:
        """The bytes themselves, writable."""

    def grant(
        self, rights: str, *, offset: int = 0, length: int | None = None, ttl_s: float = 0.0
    ) -> RegionGrant:
        """A capability for a peer. ttl_s 0: for as long as the region is registered. Raises
        BadTransfer, RegionClosed."""

    def revoke(self, grant: RegionGrant) -> None:
        """From now on the grant is refused. Idempotent."""

    async def unregister(self, timeout_s: float = 5.0) -> None:
        """Drains transfers under way, then refuses all."""


class RemoteRegion(Protocol):
    """A peer's granted range. Cheap; opening the same grant twice gives the same connection."""

    @property
    def grant(self) -> RegionGrant: ...


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """Offsets and length are whole numbers, in bytes."""

    op: Op
    local: Region
    local_offset: int
    remote: RemoteRegion
    remote_offset: int  # relative to the grant's own offset
    length: int


class Batch(Protocol):
    """Requests under way. Awaiting it returns when all are done and raises the first error."""

    def __await__(self): ...  # type: ignore[no-untyped-def]

    def status(self, index: int) -> str:
        """ "waiting", "running", "done", "failed" or "cancelled"."""

    def error(self, index: int) -> Exception | None: ...

    def cancel(self) -> None:
        """What has not begun never will; what runs is given a moment, then cut. Idempotent."""


class TransferEngineProtocol(Protocol):
    @property
    def endpoints(self) -> list[Endpoint]: ...

    def allocate(self, length: int, location: str = "") -> Region:
        """New zeroed memory of the host that every transport can reach (a memfd mapping).
        `location`: what it is near to. Raises BadTransfer, OSError."""

    def register_memory(self, buffer: object, location: str = "") -> Region:
        """Memory of the caller's (anything with a writable buffer). Peers do not reach it through
        shm, since it lies in no shareable file; over tcp and rdma they do. Raises BadTransfer."""

    def open(self, grant: RegionGrant) -> RemoteRegion: ...

    def submit(
        self,
        requests: Sequence[TransferRequest],
        *,
        priority: Priority = Priority.FOREGROUND,
        deadline_s: float = 10.0,
        checksum: bool | None = None,
    ) -> Batch: ...

    def stats(self) -> dict[str, float]: ...

    def latencies(self) -> dict[tuple[str, str], Latencies]: ...

    async def close(self) -> None: ...
