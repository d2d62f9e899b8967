"""Bringing reused blocks into our pool, layer by layer, while the first chunk computes.

A layer is released to the engine only after the checksums of all its blocks were right, and the
last one only after every owner confirmed that its lease held to the end.
"""

import asyncio
from collections.abc import Iterator
from collections.abc import Sequence as Run
from dataclasses import dataclass

from moonpool.client.base import Place
from moonpool.client.blocks import KEYS_MAX
from moonpool.client.get_session import GetSession
from moonpool.instance.errors import CorruptBlocks, FetchFailed
from moonpool.instance.layers import LayersArrived
from moonpool.instance.links import Links
from moonpool.instance.sequence import Sequence
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError
from moonpool.messages.plan import PrefixRun
from moonpool.telemetry import names

LEASE_S = 8.0
LOWER_TIERS = ("nvme", "oss")
NODE_TIERS = ("dram", *LOWER_TIERS)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Leading blocks `[first, first + count)` of a sequence, all from one owner."""

    session: GetSession
    first: int
    count: int
    tier: str


def layer_groups(layers: int) -> Iterator[range]:
    """Few layers first, so that compute starts early; then more, so that requests stay large."""
    start, size = 0, 1
    while start < layers:
        yield range(start, min(start + size, layers))
        start, size = start + size, min(size * 2, 8)


class PrefixFetch:
    """One fetch of a sequence: `open`, then `run` as a task, or `close` if nothing is to come."""

    def __init__(self, links: Links, seq: Sequence) -> None:
        self._links = links
        self._seq = seq
        self._parts: list[Part] = []
        self._seconds: dict[Part, float] = {}  # spent reading from each owner
        self._stopped = False
        self._sent_for: dict[BlockKey, str] = {}  # ahead, and the tier they were found in
        self.arrived = LayersArrived()
        self.tokens_by_tier: dict[str, int] = {}

    async def open(self, runs: Run[PrefixRun], upto: int) -> int:
        """Asks the owners in the plan; returns how many leading blocks will be here, never fewer
        than our own. An owner that is gone or has evicted them costs only its blocks."""
        have = self._seq.matched_blocks
        for run in runs:
            start, end = max(run.start, have), min(run.end, upto)
            if start >= end:
                continue
            if start > have or run.owner == self._links.ctx.id:
                break
            while have < end:  # a session holds only so many keys
                stop = min(have + KEYS_MAX, end)
                got = await self._ask(run, have, stop)
                have += got
                if have < stop:
                    return have
        return have

    async def ahead(self, runs: Run[PrefixRun], tiers: Run[str] = LOWER_TIERS) -> None:
        """While the prompt still waits: what lies in lower tiers starts on its way up, and what is
        up stays there sooner than other blocks. A node that does not answer costs nothing but
        that."""
        for run in runs:
            keys = self._seq.keys[run.start : run.end]
            if run.tier not in tiers or run.owner == self._links.ctx.id or not keys:
                continue
            for start in range(0, len(keys), KEYS_MAX):
                part = keys[start : start + KEYS_MAX]
                try:
                    coming = await self._links.blocks.calls.promote(
                        run.owner, self._seq.tenant, part, len(self._seq.keys)
                    )
                except MoonpoolError:
                    return
                is_below = run.tier in LOWER_TIERS
                if is_below and coming == len(part):  # else some were up, nobody says which
                    self._sent_for |= dict.fromkeys(part, run.tier)

    async def _ask(self, run: PrefixRun, start: int, end: int) -> int:
        keys = self._seq.keys[start:end]
        asked_s = self._links.ctx.clock.now()
        try:
            session = await self._links.blocks.open_get(
                run.owner,
                self._seq.tenant,
                keys,
                lease_s=LEASE_S,
                run_blocks=len(self._seq.keys),
            )
        except MoonpoolError as error:
            self._links.ctx.log.warning(
                "prefix owner did not answer request=%s owner=%s error=%s",
                self._seq.request,
                run.owner,
                error,
            )
            return 0
        layout = self._links.memory.layout
        count = 0
        for slot in session.slots:
            if slot.status != "hit" or slot.size_bytes != layout.block_bytes:
                break
            count += 1
        tier = session.slots[0].tier or run.tier if count else run.tier
        part = Part(session, start, count, tier)
        self._parts.append(part)
        if tier in LOWER_TIERS:  # the node read them up before it answered
            self._seconds[part] = self._links.ctx.clock.now() - asked_s
        for key, slot in zip(keys[:count], session.slots[:count], strict=True):
            name = self._sent_for.get(key) or slot.tier or run.tier
            self.tokens_by_tier[name] = self.tokens_by_tier.get(name, 0) + layout.block_tokens
        return count

    async def run(self) -> None:
        """Reads, verifies and releases all layers; on failure the engine's wait raises it."""
        try:
            await self._read_all()
        except MoonpoolError as error:
            self.arrived.fail(error)
            cause = "corrupt" if isinstance(error, CorruptBlocks) else "lost"
            for part in self._parts:
                self._links.ctx.metrics.counter(names.BLOCK_FETCH_FAILURES, part.tier, cause).inc(
                    part.count
                )
            return
        size = self._links.memory.layout.block_bytes
        for part in self._parts:
            seconds = self._seconds.get(part, 0.0)
            self._links.seen.transferred(
                part.session.node, self._links.ctx.id, part.tier, size * part.count, seconds
            )
            self._links.ctx.metrics.histogram(names.BLOCK_FETCH_SECONDS, part.tier).observe(seconds)
            for i in range(part.count):
                key = self._seq.keys[part.first + i]
                self._links.sums.put(key, part.session.slots[i].checksums)
        self.arrived.arrive(self._links.memory.layout.layers)

    def stop(self) -> None:
        """The request ended: `run` returns as soon as nothing is written into its blocks."""
        self._stopped = True

    async def close(self) -> None:
        """Gives leases back when `run` was never started."""
        await asyncio.gather(*(self._end(part) for part in self._parts))

    async def _read_all(self) -> None:
        layers = self._links.memory.layout.layers
        try:
            for group in layer_groups(layers):
                if self._stopped:
                    raise FetchFailed("the request ended")
                await self._read(group)
                if group.stop < layers:
                    self.arrived.arrive(group.stop)
        finally:
            valid = await asyncio.gather(*(self._end(part) for part in self._parts))
        if not all(valid):
            raise FetchFailed("a lease ran out while its blocks were read")

    async def _read(self, layers: range) -> None:
        """One group of layers of all blocks: read, verified, and where the engine wants them."""
        memory = self._links.memory
        ended = await asyncio.gather(
            *(self._read_part(part, layers) for part in self._parts),
            return_exceptions=True,  # so that nothing is still being written when we go on
        )
        bad = 0
        for part, result in zip(self._parts, ended, strict=True):
            if isinstance(result, BaseException):
                raise result
            if result:
                bad += len(result)
                self._links.ctx.log.error(
                    "corrupt blocks dropped request=%s owner=%s blocks=%d",
                    self._seq.request,
                    part.session.node,
                    len(result),
                )
        if bad:
            self._links.ctx.metrics.counter(names.BLOCKS_CORRUPT, "fetch").inc(bad)
            raise CorruptBlocks(f"{bad} reused blocks have wrong checksums")
        if memory.mirrored:
            blocks = [b for part in self._parts for b in self._blocks(part)]
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._links.helpers, memory.bring_in, blocks, layers)

    async def _read_part(self, part: Part, layers: range) -> dict[int, list[int]]:
        clock = self._links.ctx.clock
        started_s = clock.now()
        bad = await part.session.read_chunks(layers.start, layers.stop, self._targets(part))
        self._seconds[part] = self._seconds.get(part, 0.0) + clock.now() - started_s
        return bad

    def _blocks(self, part: Part) -> list[int]:
        return self._seq.blocks[part.first : part.first + part.count]

    def _targets(self, part: Part) -> dict[int, Place]:
        memory = self._links.memory
        return {
            i: (memory.region, block * memory.layout.block_bytes)
            for i, block in enumerate(self._blocks(part))
        }

    async def _end(self, part: Part) -> bool:
        try:
            return await part.session.finish()
        except MoonpoolError:
            return False  # the owner is gone: it cannot confirm that its bytes stayed in place
