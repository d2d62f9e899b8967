"""Small registered buffers out of one region: registering memory for each would cost more than
moving what is in it."""

from types import TracebackType
from typing import Self

from moonpool.cache import OffsetAllocator
from moonpool.messages.segments import RegionGrant
from moonpool.transfer.arguments import number
from moonpool.transfer.base import Op, RemoteRegion, TransferRequest
from moonpool.transfer.errors import BadTransfer, RegionClosed, TransferBusy
from moonpool.transfer.regions import LocalRegion

ALIGN_BYTES = 64  # of every buffer: a cache line


class Buffer:
    """`length` bytes of a pool, until `free` or `retire`. A context manager that frees."""

    def __init__(self, pool: "BufferPool", offset: int, length: int) -> None:
        self._pool = pool
        self.offset = offset  # into the pool's region
        self.length = length
        self._grants: list[RegionGrant] = []
        self._live = True

    @property
    def region(self) -> LocalRegion:
        return self._pool.region

    @property
    def view(self) -> memoryview:
        """The bytes, writable: as the last holder left them. Not to be used after `free`."""
        self._check()
        return self.region.view[self.offset : self.offset + self.length]

    def read(self, remote: RemoteRegion, offset: int = 0) -> TransferRequest:
        """A request that fills this buffer from the peer."""
        self._check()
        return TransferRequest(Op.READ, self.region, self.offset, remote, offset, self.length)

    def write(self, remote: RemoteRegion, offset: int = 0) -> TransferRequest:
        """A request that brings this buffer to the peer."""
        self._check()
        return TransferRequest(Op.WRITE, self.region, self.offset, remote, offset, self.length)

    def grant(self, rights: str, *, ttl_s: float = 0.0) -> RegionGrant:
        """A capability for these bytes and no others; `retire` takes it back."""
        self._check()
        made = self.region.grant(rights, offset=self.offset, length=self.length, ttl_s=ttl_s)
        self._grants.append(made)
        return made

    def free(self) -> None:
        """Gives the bytes to whoever comes next: no transfer of ours may be using them. Idempotent.
        Raises BadTransfer when peers hold grants on them: `retire` is for those."""
        if not self._live:
            return
        if self._grants:
            raise BadTransfer(f"{len(self._grants)} grants on this buffer are out: retire it")
        self._live = False
        self._pool.take_back(self)

    async def retire(self, timeout_s: float = 5.0) -> None:
        """Withdraws its grants, then frees. Raises TransferTimeout when a peer does not let go; the
        buffer is then still ours, and `retire` may be tried again."""
        while self._grants:
            await self.region.withdraw(self._grants[-1], timeout_s)
            self._grants.pop()
        self.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.free()

    def _check(self) -> None:
        if not self._live:
            raise RegionClosed("the buffer was freed")


class BufferPool:
    """Best fit, merged when freed. Belongs to the loop of its engine; made by `make_pool`."""

    def __init__(self, region: LocalRegion) -> None:
        self.region = region
        self._allocator = OffsetAllocator(region.length, ALIGN_BYTES)
        self._refused = 0

    def take(self, length: int) -> Buffer:
        """Raises TransferBusy when there is no room now, BadTransfer when there never is."""
        length = number(length, "length")
        if not 0 < length <= self._allocator.size_bytes:
            raise BadTransfer(f"a pool of {self._allocator.size_bytes} bytes has none of {length}")
        if self.region.closing:
            raise RegionClosed("the pool's region is unregistered")
        offset = self._allocator.allocate(length)
        if offset is None:
            self._refused += 1
            raise TransferBusy(f"no {length} bytes in a row are free", retry_after_s=0.01)
        return Buffer(self, offset, length)

    def take_back(self, buffer: Buffer) -> None:
        """For `Buffer.free`."""
        self._allocator.free(buffer.offset)

    def stats(self) -> dict[str, float]:
        stats = self._allocator.stats()
        return {
            "bytes_total": stats.bytes_total,
            "bytes_used": stats.bytes_used,
            "buffers": stats.allocations,
            "hole_max_bytes": stats.hole_max_bytes,
            "refused": self._refused,
        }

    def check(self) -> None:
        """Asserts that buffers and holes tile the region."""
        self._allocator.check()
