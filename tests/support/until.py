"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    deadline_s: float = 10.0,
    *,
    every_s: float = 0.01,
    saying: str = "",
) -> None:
    """Returns as soon as `condition()` holds. Raises AssertionError after `deadline_s`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while True:
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if held:
            return
        if loop.time() >= end:
            raise AssertionError(f"not within {deadline_s} s: {saying or condition}")
        await asyncio.sleep(every_s)
