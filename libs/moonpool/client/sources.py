"""How much one client reads from one node at a time, and which copy it takes.

Readers of a hot value spread over its copies, and each holds back when a node is busy with it
already: many readers then share a node's network instead of jamming it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

IN_FLIGHT_MAX_BYTES = 64 << 20  # per node, but for a single larger read


class Sources:
    """Bytes under way from each node."""

    def __init__(self, rng: Random, in_flight_max_bytes: int = IN_FLIGHT_MAX_BYTES) -> None:
        self._rng = rng
        self._max_bytes = in_flight_max_bytes
        self._in_flight: Counter[str] = Counter()
        self._room = asyncio.Condition()
        self._waits = 0

    def pick(self, nodes: Sequence[str], local: Sequence[str] = ()) -> str:
        """The copy to read: on our own host while that is not busy, else from the least busy node,
        by chance among equals. ValueError on none."""
        near = [n for n in nodes if n in local and self._in_flight[n] < self._max_bytes]
        return min(near or nodes, key=lambda node: (self._in_flight[node], self._rng.random()))

    @asynccontextmanager
    async def reading(self, node: str, size_bytes: int) -> AsyncIterator[None]:
        """Waits until so many bytes may come from the node; its caller has the deadline."""
        async with self._room:
            self._waits += not self._fits(node, size_bytes)
            await self._room.wait_for(lambda: self._fits(node, size_bytes))
            self._in_flight[node] += size_bytes
        try:
            yield
        finally:
            self._in_flight[node] -= size_bytes
            if not self._in_flight[node]:
                del self._in_flight[node]
            async with self._room:
                self._room.notify_all()

    def stats(self) -> dict[str, int]:
        return {"reading_bytes": self._in_flight.total(), "reads_held_back": self._waits}

    def _fits(self, node: str, size_bytes: int) -> bool:
        busy_bytes = self._in_flight[node]
        return not busy_bytes or busy_bytes + size_bytes <= self._max_bytes
