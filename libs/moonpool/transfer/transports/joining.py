"""Waiting for threads without blocking the event loop and without yet another thread."""

import asyncio
import threading
import time
from collections.abc import Iterable

from moonpool.messages.errors import BugError


async def join_all(threads: Iterable[threading.Thread], timeout_s: float = 5.0) -> None:
    """Returns when all have ended. They were told to and nothing they wait for is left, so one that
    does not end is our bug: raises BugError."""
    deadline = time.monotonic() + timeout_s
    for thread in list(threads):
        while thread.is_alive():
            if time.monotonic() > deadline:
                raise BugError(f"thread {thread.name} did not end within {timeout_s:g} s")
            await asyncio.sleep(0.001)
        thread.join()
