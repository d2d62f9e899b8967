"""The clock that serves: the machine's own time."""

import asyncio
import time


class RealClock:
    """Monotonic time that never jumps, and the wall clock for records."""

    def now(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Cancellable at any point; nothing is held."""
        await asyncio.sleep(max(0.0, seconds))
