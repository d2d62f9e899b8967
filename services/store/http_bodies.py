"""Bodies on their way in over HTTP: memory for them, and how slowly they may come."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect

from services.store.http_answers import BodyCut, BodyLate, BodyTooLarge, FaceBusy

WAIT_MAX_S = 10.0  # for memory that others' bodies take
STEP_BYTES = 4 << 20  # of memory, for a body that does not say how long it is
IDLE_MAX_S = 10.0  # between two pieces
PATIENCE_S = 30.0  # in all, and ..
PACE_BYTES_S = 256 << 10  # .. a second more for so much that has come


class Held:
    """Memory for bodies: a request waits for its share, but not for long."""

    def __init__(self, bytes_max: int) -> None:
        self._free_bytes = bytes_max
        self._bytes_max = bytes_max
        self._changed = asyncio.Condition()

    async def take(self, size_bytes: int) -> None:
        """Raises FaceBusy."""
        try:
            async with asyncio.timeout(WAIT_MAX_S), self._changed:
                await self._changed.wait_for(lambda: self._free_bytes >= size_bytes)
                self._free_bytes -= size_bytes
        except TimeoutError:
            raise FaceBusy from None

    async def give_back(self, size_bytes: int) -> None:
        async with self._changed:
            self._free_bytes += size_bytes
            self._changed.notify_all()

    def stats(self) -> dict[str, int]:
        return {"held_bytes": self._bytes_max - self._free_bytes}


class Share:
    """What one request holds of it."""

    def __init__(self, held: Held) -> None:
        self.size_bytes = 0
        self._held = held

    async def grow(self, size_bytes: int) -> None:
        """To at least so much. Raises FaceBusy."""
        more_bytes = size_bytes - self.size_bytes
        if more_bytes > 0:
            await self._held.take(more_bytes)
            self.size_bytes += more_bytes

    async def give_back(self) -> None:
        """All of it."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        await self._held.give_back(size_bytes)


async def read_body(
    pieces: AsyncIterator[bytes], announced_bytes: int | None, max_bytes: int, share: Share
) -> bytearray:
    """The body; `share` grows with what comes when nobody said how much that will be. Raises
    BodyTooLarge, also when more comes than was said, BodyLate, BodyCut, FaceBusy."""
    limit_bytes = max_bytes if announced_bytes is None else announced_bytes
    if limit_bytes > max_bytes:
        raise BodyTooLarge(max_bytes)
    if announced_bytes is not None:
        await share.grow(announced_bytes)
    body, waited_s = bytearray(), 0.0
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        allowed_s = PATIENCE_S + len(body) / PACE_BYTES_S - waited_s
        try:
            async with asyncio.timeout(min(IDLE_MAX_S, allowed_s)):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise BodyLate from None
        except ClientDisconnect:
            raise BodyCut from None
        waited_s += loop.time() - began_s
        if piece is None:
            return body
        size_bytes = len(body) + len(piece)
        if size_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        if size_bytes > share.size_bytes:
            await share.grow(min(limit_bytes, max(size_bytes, len(body) + STEP_BYTES)))
        body += piece
