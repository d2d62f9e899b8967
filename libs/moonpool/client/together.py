"""Several exchanges at once, and one without the price of a task."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

A = TypeVar("A")


async def all_of(work: Sequence[Awaitable[A]]) -> list[A]:
    """As `asyncio.gather`. A single one is simply awaited: it is what most calls consist of, and
    passing through the event loop once more takes as long as half an exchange."""
    if len(work) == 1:
        return [await work[0]]
    return list(await asyncio.gather(*work))
