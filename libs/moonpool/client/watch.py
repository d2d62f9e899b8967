"""Noticing that whoever was asked has died meanwhile: a request under way is answered by nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from moonpool.bus import NoResponder
from moonpool.messages import MoonpoolError

A = TypeVar("A")

PATIENCE_S = 0.5  # with a silent node, before it is asked whether it is there


async def answer_of(asking: Awaitable[A], is_there: Callable[[], Awaitable[object]]) -> A:
    """The answer. When it takes long `is_there` is asked beside it, and its NoResponder ends the
    wait: a request that was on its way to a process that died would else wait out its time."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    dead: list[NoResponder] = []
    probes: list[asyncio.Task[None]] = []

    async def probe() -> None:
        try:
            await is_there()
        except NoResponder as error:
            dead.append(error)
            task.cancel()
        except MoonpoolError:
            return  # slow is not dead

    timer = loop.call_later(PATIENCE_S, lambda: probes.append(loop.create_task(probe())))
    try:
        return await asking
    except asyncio.CancelledError:
        if dead and task.uncancel() == 0:
            raise dead[0] from None
        raise
    finally:
        timer.cancel()
        for each in probes:
            each.cancel()
