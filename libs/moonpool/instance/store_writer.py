"""Writing blocks to store nodes: layer by layer behind a prompt, or whole in the background.

A store that is full, slow or gone costs only the cached copy: it is counted and logged once per
change, and serving goes on.
"""

import asyncio
from collections.abc import Sequence as Run
from dataclasses import dataclass

from moonpool.instance.fetch import settle
from moonpool.instance.links import Links
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError
from moonpool.messages.codec import decode, encode
from moonpool.messages.ids import NodeId, TenantId
from moonpool.messages.store import (
    PutEndItem,
    PutEndReply,
    PutEndRequest,
    PutItem,
    PutSlot,
    PutStartReply,
    PutStartRequest,
)
from moonpool.transfer.base import Batch, Op, Priority, RemoteRegion, TransferRequest

ASK_TIMEOUT_S = 2.0
WRITE_DEADLINE_S = 10.0
BACKGROUND_MAX = 64  # whole blocks being written at once; more are not cached rather than queued


@dataclass(frozen=True, slots=True)
class Put:
    """An open put of some blocks of one sequence: those whose slot says "ok" are written."""

    node: NodeId
    id: int
    remote: RemoteRegion
    keys: list[BlockKey]
    blocks: list[int]
    slots: list[PutSlot]

    def wanted(self) -> list[int]:
        """Indexes of blocks the node asked for."""
        return [i for i, slot in enumerate(self.slots) if slot.status == "ok"]


class StoreWriter:
    def __init__(self, links: Links) -> None:
        self._links = links
        self._busy = 0
        self._unwell: set[NodeId] = set()
        self.blocks_written = 0
        self.blocks_skipped = 0

    @property
    def full(self) -> bool:
        return self._busy >= BACKGROUND_MAX

    async def open(
        self, node: NodeId, tenant: TenantId, keys: Run[BlockKey], blocks: Run[int]
    ) -> Put | None:
        """Room for blocks on `node`, or None when it wants none of them or does not answer."""
        layout = self._links.memory.layout
        items = [PutItem(key, layout.block_bytes, layout.layer_bytes) for key in keys]
        try:
            reply = decode(
                await self._ask(node, "put_start", encode(PutStartRequest(tenant, items))),
                PutStartReply,
            )
        except MoonpoolError as error:
            self._note(node, error)
            self.blocks_skipped += len(keys)
            return None
        self._note(node, None)
        if reply.grant is None or not reply.put:
            return None
        remote = self._links.transfer.open(reply.grant)
        return Put(node, reply.put, remote, list(keys), list(blocks), reply.slots)

    def write(self, put: Put, layers: range) -> Batch:
        """Sends consecutive layers of all wanted blocks."""
        memory = self._links.memory
        layer_bytes = memory.layout.layer_bytes
        requests = [
            TransferRequest(
                Op.WRITE,
                memory.region,
                memory.layout.layer_offset(put.blocks[i], layers.start),
                put.remote,
                put.slots[i].offset + layers.start * layer_bytes,
                len(layers) * layer_bytes,
            )
            for i in put.wanted()
        ]
        return self._links.transfer.submit(
            requests, priority=Priority.BACKGROUND, deadline_s=WRITE_DEADLINE_S
        )

    async def finish(self, put: Put, batches: Run[Batch], checksums: Run[bytes]) -> None:
        """Commits once all bytes have landed; abandons the put when they have not. `checksums`
        has one entry per block of the put; empty entries abandon theirs."""
        sums = list(checksums)
        try:
            for batch in batches:
                await batch
        except MoonpoolError as error:
            self._note(put.node, error)
            sums = [b""] * len(put.keys)
        finally:
            for batch in batches:
                await settle(batch)
        items = [PutEndItem(put.keys[i], put.slots[i].generation, sums[i]) for i in put.wanted()]
        try:
            reply = decode(
                await self._ask(put.node, "put_end", encode(PutEndRequest(put.id, items))),
                PutEndReply,
            )
        except MoonpoolError as error:
            self._note(put.node, error)
            self.blocks_skipped += len(items)
            return
        committed = reply.results.count("committed")
        self.blocks_written += committed
        self.blocks_skipped += len(items) - committed

    async def put_block(self, node: NodeId, tenant: TenantId, key: BlockKey, block: int) -> None:
        """One whole block, in the background. The caller holds it meanwhile."""
        self._busy += 1
        try:
            put = await self.open(node, tenant, [key], [block])
            if put is None or not put.wanted():
                return
            layers = range(self._links.memory.layout.layers)
            loop = asyncio.get_running_loop()
            sums = await loop.run_in_executor(self._links.helpers, self._seal, block, layers)
            self._links.sums.put(key, sums)
            await self.finish(put, [self.write(put, layers)], [sums])
        finally:
            self._busy -= 1

    def _seal(self, block: int, layers: range) -> bytes:
        self._links.memory.bring_out([block], layers)
        return self._links.memory.checksums(block, layers)

    async def _ask(self, node: NodeId, verb: str, payload: bytes) -> bytes:
        ctx = self._links.ctx
        return await ctx.bus.request(ctx.subjects.store(node, verb), payload, ASK_TIMEOUT_S)

    def _note(self, node: NodeId, error: MoonpoolError | None) -> None:
        """One log line when a node falls ill, one when it is well again."""
        if error is not None and node not in self._unwell:
            self._unwell.add(node)
            self._links.ctx.log.warning("store does not take blocks node=%s error=%s", node, error)
        elif error is None and node in self._unwell:
            self._unwell.discard(node)
            self._links.ctx.log.info("store takes blocks again node=%s", node)
