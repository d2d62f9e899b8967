"""Reading blocks of one owner under a lease: layers as they are wanted, each verified."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client.base import Place
from moonpool.client.errors import BadRange, LeaseLost, SessionOver
from moonpool.client.node_calls import NodeCalls
from moonpool.client.spans import Span, bad_chunks_of
from moonpool.client.watch import answer_of
from moonpool.kv import BlockKey
from moonpool.kv.checksum import CHECKSUM_BYTES, bad_chunks
from moonpool.messages import TenantId
from moonpool.messages.store import GetSlot
from moonpool.transfer.base import (
    Batch,
    Op,
    Priority,
    RemoteRegion,
    TransferEngineProtocol,
    TransferRequest,
)

INLINE_BYTES = 256 << 10  # verified at once: a thread costs more
PIECE_BYTES = 4 << 20  # of a span, on its way while the piece before it is verified
CERTAIN_SHARE = 0.25  # of a lease: with so much left, clocks that run a little apart do not matter


@dataclass(frozen=True, slots=True)
class SpanRead:
    """A range of one object: where it goes, and where the rest of its first and last chunk does."""

    index: int
    span: Span
    place: Place
    around: Place  # room for head_bytes and then rest_bytes

    def pieces(self, offset: int) -> Iterator[tuple[int, Place, int]]:
        """(offset in the remote region, local place, length) of what is to be read."""
        span, (region, at) = self.span, self.around
        low = offset + span.first * span.chunk_bytes
        if span.head_bytes:
            yield low, self.around, span.head_bytes
        if span.end > span.start:
            yield offset + span.start, self.place, span.end - span.start
        if span.rest_bytes:
            yield offset + span.end, (region, at + span.head_bytes), span.rest_bytes

    def split(self) -> Iterator["SpanRead"]:
        """The same in pieces of whole chunks, of about `PIECE_BYTES`."""
        span, (region, at), (side, near) = self.span, self.place, self.around
        step = max(1, PIECE_BYTES // span.chunk_bytes)
        for first in range(span.first, span.last, step):
            low = max(span.start, first * span.chunk_bytes)
            high = min(span.end, (first + step) * span.chunk_bytes)
            beside = (side, near if low == span.start else near + span.head_bytes)
            place = (region, at + low - span.start)
            yield SpanRead(self.index, Span(low, high, span.chunk_bytes), place, beside)

    def is_bad(self, slot: GetSlot) -> bool:
        """Whether what was read differs from the checksums."""
        span = self.span
        (region, at), (side, near) = self.place, self.around
        return bool(
            bad_chunks_of(
                span,
                slot,
                side.view[near : near + span.head_bytes],
                region.view[at : at + span.end - span.start],
                side.view[near + span.head_bytes :][: span.rest_bytes],
            )
        )


class GetSession:
    """Made by `BlockStore.open_get`. What was read counts only once `finish` has said True."""

    def __init__(
        self,
        calls: NodeCalls,
        transfer: TransferEngineProtocol,
        node: str,
        tenant: TenantId,
        keys: list[BlockKey],
        slots: list[GetSlot],
        lease: int,
        remote: RemoteRegion | None,
        ends_s: float,
    ) -> None:
        self.node = node
        self.keys = keys
        self.slots = slots
        self.corrupt: set[int] = set()  # indices found corrupt so far
        self._calls = calls
        self._transfer = transfer
        self._tenant = tenant
        self._lease = lease  # 0: none
        self._is_lost = False  # with its owner
        self._remote = remote
        self._ends_s = ends_s
        self._lease_s = max(0.0, ends_s - time.monotonic())

    @property
    def hits(self) -> list[int]:
        """Indices of the keys that can be read."""
        return [i for i, slot in enumerate(self.slots) if slot.status == "hit"]

    async def read_chunks(
        self,
        first: int,
        last: int,
        targets: Mapping[int, Place],
        priority: Priority = Priority.FOREGROUND,
    ) -> dict[int, list[int]]:
        """Reads chunks (layers) `[first, last)` of the objects with these indices, and verifies
        them. Returns the bad chunks by index: empty when all is well. Raises SessionOver,
        LeaseLost, BadRange (no hit, or no such chunk), NoResponder, RequestTimeout and the transfer
        library's errors; afterwards the local memory is no longer written."""
        left_s = self._time_left()
        self._require_chunks(first, last, targets)
        assert self._remote is not None
        requests = []
        for index, (region, offset) in targets.items():
            slot = self.slots[index]
            start, length = first * slot.chunk_bytes, (last - first) * slot.chunk_bytes
            requests.append(
                TransferRequest(
                    Op.READ, region, offset + start, self._remote, slot.offset + start, length
                )
            )
        if requests:
            batch = self._transfer.submit(requests, priority=priority, deadline_s=left_s)
            await answer_of(batch, lambda: self._require_owner([batch]))
        size_bytes = sum(request.length for request in requests)
        if size_bytes <= INLINE_BYTES:
            bad = self._verify(first, last, targets)
        else:
            bad = await asyncio.to_thread(self._verify, first, last, targets)
        self.corrupt |= bad.keys()
        return bad

    async def read_spans(
        self, reads: Sequence[SpanRead], priority: Priority = Priority.FOREGROUND
    ) -> set[int]:
        """Reads ranges of objects to where they belong, whole chunks around them to `around`, and
        verifies them. Returns the indices of those that are corrupt. Raises as `read_chunks`."""
        left_s = self._time_left()
        assert self._remote is not None
        bad: set[int] = set()
        under_way: list[tuple[list[SpanRead], Batch]] = []
        try:
            for group in _groups(reads):
                requests = [
                    TransferRequest(Op.READ, place[0], place[1], self._remote, offset, length)
                    for read in group
                    for offset, place, length in read.pieces(self.slots[read.index].offset)
                ]
                if requests:
                    batch = self._transfer.submit(requests, priority=priority, deadline_s=left_s)
                    under_way.append((group, batch))
            for group, batch in under_way:  # one is looked at while the next is on its way
                await answer_of(batch, lambda: self._require_owner(each for _, each in under_way))
                bad |= {read.index for read in group if read.is_bad(self.slots[read.index])}
        except BaseException:
            for _, batch in under_way:
                batch.cancel()
            await asyncio.gather(*(batch for _, batch in under_way), return_exceptions=True)
            raise
        self.corrupt |= bad
        return bad

    async def _require_owner(self, under_way: Iterable[Batch]) -> None:
        """Raises NoResponder, RequestTimeout when the owner is gone or stands still: its bytes are
        not waited for, nor its word that the lease is over."""
        try:
            await self._calls.probe(self.node)
        except (NoResponder, RequestTimeout):
            self._lease, self._is_lost = 0, True
            for batch in under_way:
                batch.cancel()
            raise

    def _require_chunks(self, first: int, last: int, indices: Iterable[int]) -> None:
        """Raises BadRange."""
        for index in indices:
            slot = self.slots[index] if 0 <= index < len(self.slots) else None
            if slot is None or slot.status != "hit":
                raise BadRange(f"object {index} is no hit of this get on {self.node}")
            chunks = slot.size_bytes // slot.chunk_bytes
            if not 0 <= first <= last <= chunks:
                raise BadRange(f"chunks [{first}, {last}) of object {index}, which has {chunks}")

    def _time_left(self) -> float:
        """Seconds that the lease has. Raises SessionOver, LeaseLost."""
        if not self._lease or self._remote is None:
            raise SessionOver(f"the get on {self.node} is over")
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise LeaseLost(f"the lease on {self.node} ran out; renew it sooner")
        return left_s

    async def read_all(
        self, targets: Mapping[int, Place], priority: Priority = Priority.FOREGROUND
    ) -> set[int]:
        """Reads whole objects, of any sizes; returns the indices of those that are corrupt."""
        by_chunks: dict[int, dict[int, Place]] = {}
        for index, place in targets.items():
            chunks = self.slots[index].size_bytes // self.slots[index].chunk_bytes
            by_chunks.setdefault(chunks, {})[index] = place
        found: set[int] = set()
        for chunks, some in by_chunks.items():
            found |= (await self.read_chunks(0, chunks, some, priority)).keys()
        return found

    async def renew(self, lease_s: float = 10.0) -> None:
        """A new lease in place of the old one, for a read that takes long. Raises LeaseLost when
        an object is not the same any more, or not there."""
        hits = self.hits
        began_s = time.monotonic()
        keys = [self.keys[i] for i in hits]
        reply = await self._calls.get_start(self.node, self._tenant, keys, lease_s)
        old, self._lease = self._lease, reply.lease
        self._ends_s = began_s + lease_s
        if old:
            await self._calls.get_end(self.node, old)
        for index, slot in zip(hits, reply.slots, strict=True):
            if slot.status != "hit" or slot.generation != self.slots[index].generation:
                raise LeaseLost(f"{self.keys[index].hex()} on {self.node} was replaced meanwhile")

    async def finish(self) -> bool:
        """Ends the lease. False: it had run out, and what was read must be thrown away. Tells the
        owner of corrupt objects. A second call says True and does nothing."""
        if self._is_lost:
            return False
        lease, self._lease = self._lease, 0
        valid = await self._calls.get_end(self.node, lease) if lease else True
        corrupt, self.corrupt = self.corrupt, set()
        if valid and corrupt:
            keys = [self.keys[i] for i in sorted(corrupt)]
            await self._calls.remove(self.node, self._tenant, keys, reason="corrupt")
        return valid

    async def release(self) -> bool:
        """As `finish`, without a question where our own clock is answer enough: the lease began
        after we had asked for it, so with a good part of it left it has not run out."""
        left_s = self._ends_s - time.monotonic()
        if not self._lease or self.corrupt or left_s < self._lease_s * CERTAIN_SHARE:
            return await self.finish()
        lease, self._lease = self._lease, 0
        await self._calls.get_end_unheard(self.node, lease)
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the lease when nobody did; its verdict is lost, so call `finish` before using
        what was read."""
        try:
            await self.finish()
        except (NoResponder, RequestTimeout):
            return  # with its owner the lease is gone too

    def _verify(self, first: int, last: int, targets: Mapping[int, Place]) -> dict[int, list[int]]:
        bad: dict[int, list[int]] = {}
        for index, (region, offset) in targets.items():
            slot = self.slots[index]
            start, end = first * slot.chunk_bytes, last * slot.chunk_bytes
            sums = slot.checksums[first * CHECKSUM_BYTES : last * CHECKSUM_BYTES]
            view = region.view[offset + start : offset + end]
            wrong = bad_chunks(view, slot.chunk_bytes, sums)
            if wrong:
                bad[index] = [first + chunk for chunk in wrong]
        return bad


def _groups(reads: Sequence[SpanRead]) -> Iterator[list[SpanRead]]:
    """Small ones together, large ones in pieces."""
    group: list[SpanRead] = []
    group_bytes = 0
    for read in reads:
        size_bytes = read.span.end - read.span.start
        for piece in read.split() if size_bytes > PIECE_BYTES else (read,):
            group.append(piece)
            group_bytes += piece.span.end - piece.span.start
            if group_bytes >= PIECE_BYTES // 2:
                yield group
                group, group_bytes = [], 0
    if group:
        yield group
