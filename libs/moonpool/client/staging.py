"""Registered memory for values on their way: one arena, and regions of their own for large ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moonpool.cache import OffsetAllocator
from moonpool.client.base import Place
from moonpool.transfer.base import Region, TransferEngineProtocol

ARENA_BYTES = 64 << 20


class Staging:
    """Places for a while. What does not fit the arena right now gets a region of its own."""

    def __init__(self, transfer: TransferEngineProtocol, arena_bytes: int = ARENA_BYTES) -> None:
        self._transfer = transfer
        self._arena: Region = transfer.allocate(arena_bytes)
        self._allocator = OffsetAllocator(arena_bytes)
        self._large = 0

    @asynccontextmanager
    async def places(self, sizes: list[int]) -> AsyncIterator[list[Place]]:
        """One place per size, until the block ends. OSError when the system has no memory."""
        offsets: list[int] = []
        own: list[Region] = []
        places: list[Place] = []
        try:
            for size_bytes in sizes:
                offset = self._allocator.allocate(size_bytes)
                if offset is not None:
                    offsets.append(offset)
                    places.append((self._arena, offset))
                else:
                    own.append(self._transfer.allocate(size_bytes))
                    self._large += 1
                    places.append((own[-1], 0))
            yield places
        finally:
            for offset in offsets:
                self._allocator.free(offset)
            await asyncio.gather(*(region.unregister() for region in own))

    def stats(self) -> dict[str, int]:
        return {"arena_used_bytes": self._allocator.bytes_used, "large_regions": self._large}
