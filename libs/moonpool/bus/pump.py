"""Messages of one subscription on their way to its callback: bounded, in order, one at a time."""

import asyncio
import logging
from collections import deque

from moonpool.bus.base import Callback

log = logging.getLogger(__name__)


class Pump:
    """`offer` never blocks; when the callback is too slow the oldest waiting message goes."""

    def __init__(self, callback: Callback, queue_max: int, name: str) -> None:
        if queue_max < 1:
            raise ValueError(f"queue_max {queue_max} must be at least 1")
        self._callback = callback
        self._waiting: deque[tuple[str, bytes]] = deque()  # len <= queue_max
        self._queue_max = queue_max
        self._name = name
        self._arrived = asyncio.Event()
        self._delivered = self._dropped = self._errors = 0
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"pump {name}")

    def offer(self, subject: str, payload: bytes) -> None:
        if self._closed:
            return
        if len(self._waiting) >= self._queue_max:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append((subject, payload))
        self._arrived.set()

    async def close(self) -> None:
        """Drops what waits and ends a callback under way, unless that is who closes. Idempotent."""
        self._closed = True
        self._waiting.clear()
        if asyncio.current_task() is self._task:
            return
        self._task.cancel()
        await asyncio.wait([self._task])

    def stats(self) -> dict[str, int]:
        return {
            "delivered": self._delivered,
            "dropped": self._dropped,
            "errors": self._errors,
            "waiting": len(self._waiting),
        }

    async def _run(self) -> None:
        while not self._closed:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            subject, payload = self._waiting.popleft()
            try:
                await self._callback(subject, payload)
            except Exception:  # one bad message must not end the subscription
                self._errors += 1
                log.exception("callback of %s failed on %s", self._name, subject)
            else:
                self._delivered += 1
