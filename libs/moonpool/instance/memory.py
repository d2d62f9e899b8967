"""Where peers read and write an instance's KV: host memory with the pool's own block numbers.

On a CPU this *is* the pool. For an accelerator it is a host mirror of it, block for block: blocks
are copied out before they are sent and copied in once they have been verified.
"""

from collections.abc import Sequence
from typing import Protocol

from moonpool.engine.base import Engine
from moonpool.kv import BlockLayout
from moonpool.kv.checksum import bad_chunks, chunk_checksums
from moonpool.transfer.regions import LocalRegion


class MirroredEngine(Engine, Protocol):
    """An engine whose pool lies outside host memory."""

    def write_block(self, block: int, layers: range, data: memoryview) -> None: ...


class PoolMemory:
    """Host bytes of blocks, by (block, layer). Methods may be called from worker threads, for
    blocks that nobody else writes at the time."""

    def __init__(
        self, region: LocalRegion, layout: BlockLayout, mirror: MirroredEngine | None
    ) -> None:
        self.region = region
        self.layout = layout
        self._mirror = mirror

    @property
    def mirrored(self) -> bool:
        """Whether host bytes and device bytes are two things."""
        return self._mirror is not None

    def view(self, block: int, layers: range) -> memoryview:
        """Consecutive layers of one block: a writable view."""
        start = self.layout.layer_offset(block, layers.start)
        return self.region.view[start : start + len(layers) * self.layout.layer_bytes]

    def bring_out(self, blocks: Sequence[int], layers: range) -> None:
        """Makes the host bytes current, before they are sent."""
        if self._mirror is not None:
            for block in blocks:
                self.view(block, layers)[:] = self._mirror.read_block(block, layers)

    def bring_in(self, blocks: Sequence[int], layers: range) -> None:
        """Makes the device bytes current, after host bytes were received and verified."""
        if self._mirror is not None:
            for block in blocks:
                self._mirror.write_block(block, layers, self.view(block, layers))

    def checksums(self, block: int, layers: range) -> bytes:
        """One packed u64 per layer."""
        return chunk_checksums(self.view(block, layers), self.layout.layer_bytes)

    def bad_layers(self, block: int, layers: range, checksums: bytes) -> list[int]:
        """Layers whose bytes are not what `checksums` (one per layer of `layers`) says."""
        found = bad_chunks(self.view(block, layers), self.layout.layer_bytes, checksums)
        return [layers.start + i for i in found]
