"""Writing blocks to store nodes: layer by layer behind a prompt, or whole in the background.

A store that is full, slow or gone costs only the cached copy: it is counted and logged once per
change, and serving goes on.
"""

import asyncio
from collections.abc import Sequence as Run
from dataclasses import dataclass, field

from moonpool.client.blocks import KEYS_MAX
from moonpool.client.put_session import PutSession
from moonpool.instance.links import Links
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError
from moonpool.messages.ids import NodeId, TenantId
from moonpool.messages.store import PutItem
from moonpool.telemetry import names

BACKGROUND_MAX = 64  # whole blocks being written at once; more are not cached rather than queued


@dataclass(slots=True)
class Put:
    """An open put of some blocks of one sequence."""

    session: PutSession
    blocks: list[int]  # device blocks, in the order of the session's keys
    writes: list[asyncio.Task[None]] = field(default_factory=list)


class StoreWriter:
    def __init__(self, links: Links) -> None:
        self._links = links
        self._busy = 0
        self._unwell: set[NodeId] = set()
        self._outcomes = links.ctx.metrics.counters(names.PUTS)

    @property
    def full(self) -> bool:
        return self._busy >= BACKGROUND_MAX

    async def open(
        self,
        node: NodeId,
        tenant: TenantId,
        keys: Run[BlockKey],
        blocks: Run[int],
        *,
        run_blocks: int = 0,
    ) -> Put | None:
        """Room for blocks on `node`, or None when it wants none of them or does not answer. Beyond
        `KEYS_MAX` blocks at once the rest is left out."""
        keys, blocks = keys[:KEYS_MAX], blocks[:KEYS_MAX]
        layout = self._links.memory.layout
        items = [PutItem(key, layout.block_bytes, layout.layer_bytes) for key in keys]
        try:
            session = await self._links.blocks.open_put(node, tenant, items, run_blocks=run_blocks)
        except MoonpoolError as error:
            self._note(node, error)
            return None
        self._note(node, None)
        for slot in session.slots:
            if slot.status != "ok":
                self._outcomes.labels(slot.status).inc()
        return Put(session, list(blocks)) if session.wanted else None

    def write(self, put: Put, layers: range) -> None:
        """Begins to send consecutive layers of all wanted blocks; `finish` waits for it."""
        memory = self._links.memory
        sources = {
            i: (memory.region, put.blocks[i] * memory.layout.block_bytes)
            for i in put.session.wanted
        }
        put.writes.append(
            asyncio.create_task(put.session.write_chunks(layers.start, layers.stop, sources))
        )

    async def finish(self, put: Put, checksums: Run[bytes] | None) -> None:
        """Commits once all bytes have landed; abandons the put when they have not, or when
        `checksums` (one per block of the put) is None."""
        node = NodeId(put.session.node)
        ended = await asyncio.gather(*put.writes, return_exceptions=True)
        failed = [error for error in ended if isinstance(error, BaseException)]
        try:
            for error in failed:
                raise error
            if checksums is None:
                await put.session.abandon()
                return
            sums = {i: checksums[i] for i in put.session.wanted}
            results = await put.session.finish(sums)
        except MoonpoolError as error:
            self._note(node, error)
            await put.session.abandon()
            return
        for i in put.session.wanted:
            self._outcomes.labels(results[i]).inc()

    async def put_block(
        self, node: NodeId, tenant: TenantId, key: BlockKey, block: int, *, run_blocks: int = 0
    ) -> None:
        """One whole block, in the background. The caller holds it meanwhile."""
        self._busy += 1
        try:
            put = await self.open(node, tenant, [key], [block], run_blocks=run_blocks)
            if put is None:
                return
            layers = range(self._links.memory.layout.layers)
            loop = asyncio.get_running_loop()
            sums = await loop.run_in_executor(self._links.helpers, self._seal, block, layers)
            self._links.sums.put(key, sums)
            self.write(put, layers)
            await self.finish(put, [sums])
        finally:
            self._busy -= 1

    def skipped(self) -> None:
        """A block that was not even offered to a node."""
        self._outcomes.labels("skipped").inc()

    def _seal(self, block: int, layers: range) -> bytes:
        self._links.memory.bring_out([block], layers)
        return self._links.memory.checksums(block, layers)

    def _note(self, node: NodeId, error: MoonpoolError | None) -> None:
        """One log line when a node falls ill, one when it is well again."""
        if error is not None and node not in self._unwell:
            self._unwell.add(node)
            self._links.ctx.log.warning("store does not take blocks node=%s error=%s", node, error)
        elif error is None and node in self._unwell:
            self._unwell.discard(node)
            self._links.ctx.log.info("store takes blocks again node=%s", node)
