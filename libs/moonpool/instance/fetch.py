"""Bringing reused blocks into our pool, layer by layer, while the first chunk computes.

A layer is released to the engine only after the checksums of all its blocks were right, and the
last one only after every owner confirmed that its lease held to the end.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from collections.abc import Sequence as Run
from dataclasses import dataclass

from moonpool.instance.errors import CorruptBlocks, FetchFailed
from moonpool.instance.layers import LayersArrived
from moonpool.instance.links import Links
from moonpool.instance.sequence import Sequence
from moonpool.kv import pack_keys
from moonpool.messages import MoonpoolError
from moonpool.messages.codec import decode, encode
from moonpool.messages.plan import PrefixRun
from moonpool.messages.store import (
    GetEndReply,
    GetEndRequest,
    GetSlot,
    GetStartReply,
    GetStartRequest,
)
from moonpool.transfer.base import Batch, Op, RemoteRegion, TransferRequest

ASK_TIMEOUT_S = 2.0
READ_DEADLINE_S = 8.0


@dataclass(frozen=True, slots=True)
class Part:
    """Leading blocks `[first, first + len(slots))` of a sequence, all from one owner."""

    owner: str
    lease: int
    remote: RemoteRegion
    first: int
    slots: list[GetSlot]


def layer_groups(layers: int) -> Iterator[range]:
    """Few layers first, so that compute starts early; then more, so that requests stay large."""
    start, size = 0, 1
    while start < layers:
        yield range(start, min(start + size, layers))
        start, size = start + size, min(size * 2, 8)


async def settle(batch: Batch) -> None:
    """Cancels what has not begun and returns when nothing of the batch runs any more."""
    batch.cancel()
    with contextlib.suppress(MoonpoolError):
        await batch


class PrefixFetch:
    """One sequence's fetch. `open`, then `run` as a task; both are over when `run` returns."""

    def __init__(self, links: Links, seq: Sequence) -> None:
        self._links = links
        self._seq = seq
        self._parts: list[Part] = []
        self._batch: Batch | None = None
        self._stopped = False
        self.arrived = LayersArrived()
        self.tokens_by_tier: dict[str, int] = {}

    async def open(self, runs: Run[PrefixRun], upto: int) -> int:
        """Asks the owners in the plan; returns how many leading blocks will be here, never fewer
        than our own. An owner that is gone or has evicted them costs only its blocks."""
        have = self._seq.matched_blocks
        for run in runs:
            start, end = max(run.start, have), min(run.end, upto)
            if run.end <= have or start >= end:
                continue
            if start > have or run.owner == self._links.ctx.id:
                break
            got = await self._ask(run, start, end)
            have += got
            if got < end - start:
                break
        return have

    async def _ask(self, run: PrefixRun, start: int, end: int) -> int:
        ctx = self._links.ctx
        request = GetStartRequest(self._seq.tenant, pack_keys(self._seq.keys[start:end]))
        subject = ctx.subjects.store(run.owner, "get_start")
        try:
            reply = decode(
                await ctx.bus.request(subject, encode(request), ASK_TIMEOUT_S), GetStartReply
            )
        except MoonpoolError as error:
            ctx.log.warning(
                "prefix owner did not answer request=%s owner=%s error=%s",
                self._seq.request, run.owner, error,
            )  # fmt: skip
            return 0
        if reply.grant is None:
            return 0
        size = self._links.memory.layout.block_bytes
        hits = 0
        while hits < len(reply.slots) and reply.slots[hits].status == "hit":
            if reply.slots[hits].size_bytes != size:
                break
            hits += 1
        part = Part(
            run.owner,
            reply.lease,
            self._links.transfer.open(reply.grant),
            start,
            reply.slots[:hits],
        )
        self._parts.append(part)
        block_tokens = self._links.memory.layout.block_tokens
        for slot in part.slots:
            tier = slot.tier or run.tier
            self.tokens_by_tier[tier] = self.tokens_by_tier.get(tier, 0) + block_tokens
        return hits

    async def run(self) -> None:
        """Reads, verifies and releases all layers; on failure the engine's wait raises it."""
        clock = self._links.ctx.clock
        started_s = clock.now()
        try:
            await self._read_all()
        except MoonpoolError as error:
            self.arrived.fail(error)
            return
        seconds = clock.now() - started_s
        size = self._links.memory.layout.block_bytes
        for part in self._parts:
            if part.slots:
                self._links.seen.transferred(
                    part.owner,
                    self._links.ctx.id,
                    part.slots[0].tier,
                    size * len(part.slots),
                    seconds,
                )
            for i, slot in enumerate(part.slots):
                self._links.sums.put(self._seq.keys[part.first + i], slot.checksums)
        self.arrived.arrive(self._links.memory.layout.layers)

    def stop(self) -> None:
        """The request ended: `run` returns as soon as nothing is written into its blocks."""
        self._stopped = True
        if self._batch is not None:
            self._batch.cancel()

    async def close(self) -> None:
        """Gives leases back when `run` was never started."""
        await asyncio.gather(*(self._end(part) for part in self._parts))

    async def _read_all(self) -> None:
        groups = list(layer_groups(self._links.memory.layout.layers))
        self._batch = self._submit(groups[0])
        try:
            for i, group in enumerate(groups):
                await self._batch
                if self._stopped:
                    raise FetchFailed("the request ended")
                if i + 1 < len(groups):
                    self._batch = self._submit(groups[i + 1])
                await self._verify(group)
                if i + 1 < len(groups):
                    self.arrived.arrive(group.stop)
        finally:
            await settle(self._batch)
            valid = await asyncio.gather(*(self._end(part) for part in self._parts))
        if not all(valid):
            raise FetchFailed("a lease ran out while its blocks were read")

    def _submit(self, layers: range) -> Batch:
        memory = self._links.memory
        layer_bytes = memory.layout.layer_bytes
        requests = [
            TransferRequest(
                Op.READ,
                memory.region,
                memory.layout.layer_offset(self._seq.blocks[part.first + i], layers.start),
                part.remote,
                slot.offset + layers.start * layer_bytes,
                len(layers) * layer_bytes,
            )
            for part in self._parts
            for i, slot in enumerate(part.slots)
        ]
        return self._links.transfer.submit(requests, deadline_s=READ_DEADLINE_S)

    async def _verify(self, layers: range) -> None:
        loop = asyncio.get_running_loop()
        bad = await loop.run_in_executor(self._links.helpers, self._check, layers)
        if bad:
            owners = sorted({owner for owner, _ in bad})
            self._links.ctx.log.error(
                "corrupt blocks dropped request=%s owners=%s blocks=%d",
                self._seq.request, ",".join(owners), len(bad),
            )  # fmt: skip
            raise CorruptBlocks(f"{len(bad)} blocks from {', '.join(owners)} have wrong checksums")

    def _check(self, layers: range) -> list[tuple[str, int]]:
        memory, bad = self._links.memory, []
        for part in self._parts:
            blocks = [self._seq.blocks[part.first + i] for i in range(len(part.slots))]
            for i, slot in enumerate(part.slots):
                sums = slot.checksums[8 * layers.start : 8 * layers.stop]
                if memory.bad_layers(blocks[i], layers, sums):
                    bad.append((part.owner, part.first + i))
            memory.bring_in(blocks, layers)
        return bad

    async def _end(self, part: Part) -> bool:
        if not part.lease:
            return True
        ctx = self._links.ctx
        subject = ctx.subjects.store(part.owner, "get_end")
        try:
            reply = await ctx.bus.request(subject, encode(GetEndRequest(part.lease)), ASK_TIMEOUT_S)
            return decode(reply, GetEndReply).valid
        except MoonpoolError:
            return False  # the owner is gone: it cannot confirm that its bytes stayed in place
