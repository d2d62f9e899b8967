"""Sending a prompt's KV out while it is computed: to the decode, and to the store.

After each layer of each chunk its new KV goes out at once. When the network is slower than the
engine, the layers made meanwhile leave together: a block's consecutive layers are one range.
"""

import asyncio
import contextlib
from collections.abc import Sequence as Run

from moonpool.instance.layers import LayersMade
from moonpool.instance.links import Links
from moonpool.instance.sequence import Sequence
from moonpool.instance.store_writer import Put, StoreWriter
from moonpool.messages import MoonpoolError
from moonpool.messages.decode import ReserveReply
from moonpool.transfer.base import Batch, Op, RemoteRegion, TransferRequest

PUSH_DEADLINE_S = 10.0


async def settle(batch: Batch) -> None:
    """Cancels what has not begun and returns when nothing of the batch runs any more."""
    batch.cancel()
    with contextlib.suppress(MoonpoolError):
        await batch


class PromptPush:
    """Everything that leaves for one sequence. One chunk after the other."""

    def __init__(
        self, links: Links, writer: StoreWriter, seq: Sequence, reservation: ReserveReply | None
    ) -> None:
        self._links = links
        self._writer = writer
        self._seq = seq
        self._reservation = reservation
        self._remote: RemoteRegion | None = None
        if reservation is not None and reservation.grant is not None:
            self._remote = links.transfer.open(reservation.grant)
        self._sums: dict[int, bytearray] = {}  # block index in the sequence -> u64 per layer
        self._pushed_blocks = reservation.have_blocks if reservation is not None else 0
        self._batches: list[Batch] = []
        self.bytes_pushed = 0

    def checksums(self) -> bytes:
        """For the blocks from `have_blocks` to the prompt's end, as `StartRequest` wants them."""
        have = self._reservation.have_blocks if self._reservation is not None else 0
        count = self._links.memory.layout.blocks_for(self._seq.prompt_tokens)
        return b"".join(bytes(self._sums[i]) for i in range(have, count))

    async def chunk(self, start: int, end: int, made: LayersMade) -> Put | None:
        """Pushes what a step over tokens `[start, end)` makes, and, with the first chunk, what was
        reused before it. Returns the store's open put to be finished later. Raises when the decode
        cannot be reached; a store that cannot be reached is left out."""
        layout = self._links.memory.layout
        last = end == self._seq.prompt_tokens
        stop = layout.blocks_for(end) if last else end // layout.block_tokens
        to_decode = range(min(self._pushed_blocks, stop), stop) if self._remote else range(0)
        new_full = range(start // layout.block_tokens, end // layout.block_tokens)
        put = await self._open_put(new_full)
        complete = False
        try:
            complete = await self._layer_by_layer(to_decode, new_full, put, made)
        finally:
            if put is not None and not complete:
                await self._writer.finish(put, None)
        if not complete:
            return None
        self._pushed_blocks = max(self._pushed_blocks, stop)
        for i in new_full:
            self._links.sums.put(self._seq.key_at(i), bytes(self._sums[i]))
        return put

    async def _layer_by_layer(
        self, to_decode: range, new_full: range, put: Put | None, made: LayersMade
    ) -> bool:
        """False when the step was aborted: it runs again, and so does its push."""
        seen = 0
        while seen < self._links.memory.layout.layers:
            upto = await made.wait_beyond(seen)
            if upto == seen:
                return False
            layers = range(seen, upto)
            await self._send(sorted({*to_decode, *new_full}), to_decode, layers)
            if put is not None:
                self._writer.write(put, layers)
            seen = upto
        return True

    async def again(self, indexes: tuple[int, ...]) -> None:
        """Sends whole blocks once more: the decode found them corrupt. Raises as `chunk` does."""
        blocks = sorted(i for i in indexes if i in self._sums)
        await self._send(blocks, blocks, range(self._links.memory.layout.layers))

    def put_sums(self, put: Put) -> list[bytes]:
        """Checksums of a put's blocks, in its order."""
        index = {key: i for i, key in enumerate(self._seq.keys)}
        return [bytes(self._sums[index[key]]) for key in put.session.keys]

    def stop(self) -> None:
        """The request ended: what has not begun to leave stays."""
        for batch in self._batches:
            batch.cancel()

    async def _open_put(self, new_full: range) -> Put | None:
        if self._seq.store is None or not new_full:
            return None
        keys = [self._seq.key_at(i) for i in new_full]
        blocks = [self._seq.blocks[i] for i in new_full]
        run_blocks = len(self._seq.keys)
        return await self._writer.open(
            self._seq.store, self._seq.tenant, keys, blocks, run_blocks=run_blocks
        )

    async def _send(self, sealed: list[int], to_decode: Run[int], layers: range) -> None:
        """Seals layers of blocks, then writes those that the decode lacks, and waits for that."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._links.helpers, self._seal, sealed, layers)
        if self._remote is None or self._reservation is None or not to_decode:
            return
        memory = self._links.memory
        size = len(layers) * memory.layout.layer_bytes
        requests = [
            TransferRequest(
                Op.WRITE,
                memory.region,
                memory.layout.layer_offset(self._seq.blocks[i], layers.start),
                self._remote,
                memory.layout.layer_offset(self._reservation.blocks[i], layers.start),
                size,
            )
            for i in to_decode
        ]
        batch = self._links.transfer.submit(requests, deadline_s=PUSH_DEADLINE_S)
        self._batches = [batch]
        started_s = self._links.ctx.clock.now()
        try:
            await batch
        finally:
            await settle(batch)
        sent = size * len(requests)
        self.bytes_pushed += sent
        self._links.seen.transferred(
            self._links.ctx.id,
            self._reservation.decode,
            "hbm",
            sent,
            self._links.ctx.clock.now() - started_s,
        )

    def _seal(self, indexes: list[int], layers: range) -> None:
        memory = self._links.memory
        memory.bring_out([self._seq.blocks[i] for i in indexes], layers)
        for i in indexes:
            sums = self._sums.setdefault(i, bytearray(8 * memory.layout.layers))
            part = memory.checksums(self._seq.blocks[i], layers)
            sums[8 * layers.start : 8 * layers.stop] = part
