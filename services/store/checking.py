"""Comparing checksums of objects in the segment, off the event loop when there is much to read."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from moonpool.kv.checksum import bad_chunks
from services.store.objects import StoredObject

INLINE_BYTES = 512 << 10  # a thread costs more than reading so little
THREADS = 2


class Checker:
    """Looks at the bytes themselves. One per node."""

    def __init__(self, segment: memoryview) -> None:
        self._segment = segment
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="checksums")

    async def are_sound(self, objects: Sequence[tuple[StoredObject, bytes]]) -> list[bool]:
        """For each (object, checksums): whether its bytes have them. Cancellation waits for
        nothing; the objects' places must stay theirs until the result is there."""
        if sum(obj.size_bytes for obj, _ in objects) <= INLINE_BYTES:
            return [self._is_sound(obj, sums) for obj, sums in objects]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: [self._is_sound(obj, sums) for obj, sums in objects]
        )

    def close(self) -> None:
        """Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_sound(self, obj: StoredObject, checksums: bytes) -> bool:
        if len(checksums) != obj.checksums_bytes:
            return False
        view = self._segment[obj.place : obj.place + obj.size_bytes]
        return not bad_chunks(view, obj.chunk_bytes, checksums)
