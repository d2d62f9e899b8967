"""Work that outlives the request it belongs to: telling instances to stop, closing subscriptions.

Tasks are tracked and bounded, each has its own deadline, and the end of the gateway waits for them.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from moonpool.messages.errors import MoonpoolError

log = logging.getLogger(__name__)

TASKS_MAX = 20_000


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._dropped = self._failed = 0

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` on its own. Beyond `TASKS_MAX` it is dropped and counted: the receivers free
        everything by their own deadlines."""
        if len(self._tasks) >= TASKS_MAX:
            work.close()
            self._dropped += 1
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self, grace_s: float) -> None:
        """Waits up to `grace_s`, then cancels what is left."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=grace_s)
        late = set(self._tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def stats(self) -> dict[str, int]:
        return {"running": len(self._tasks), "dropped": self._dropped, "failed": self._failed}

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed += 1
            level = logging.INFO if isinstance(error, MoonpoolError) else logging.ERROR
            log.log(level, "%s failed: %s", task.get_name(), error)
