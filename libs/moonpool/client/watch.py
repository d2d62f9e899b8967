"""Noticing that whoever was asked has died meanwhile, or stands still: a request that is under way
is answered by nobody."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.messages import MoonpoolError

A = TypeVar("A")
IsThere = Callable[[], Awaitable[object]]

PATIENCE_S = 0.4  # with a silent node, before it is asked whether it is there
AGAIN_S = 1.0  # between further such questions
LOOKS = 4


async def answer_of(asking: Awaitable[A], is_there: IsThere) -> A:
    """The answer. While it takes long `is_there` is asked beside it, now and then, and its
    NoResponder or RequestTimeout ends the wait: a request that was on its way to a process that
    died, or was stopped, would else wait out its time."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    lost: list[MoonpoolError] = []
    watching: list[asyncio.Task[None]] = []

    async def watch() -> None:
        try:
            while True:
                await is_there()
                await asyncio.sleep(AGAIN_S)
        except (NoResponder, RequestTimeout) as error:
            lost.append(error)
            task.cancel()
        except MoonpoolError:
            return  # it has answered, whatever it was

    timer = loop.call_later(PATIENCE_S, lambda: watching.append(loop.create_task(watch())))
    try:
        return await asking
    except asyncio.CancelledError:
        if lost and task.uncancel() == 0:
            raise lost[0] from None
        raise
    finally:
        timer.cancel()
        for each in watching:
            each.cancel()


async def is_answered(asking: Coroutine[Any, Any, object], for_s: float) -> bool:
    """Whether an answer comes within that time; raises the answer's error. Time in which our own
    loop was held up counts for little: it has not listened."""
    task = asyncio.get_running_loop().create_task(asking)
    try:
        for _ in range(LOOKS):
            if (await asyncio.wait((task,), timeout=for_s / LOOKS))[0]:
                await task
                return True
        return False
    finally:
        if not task.cancel() and not task.cancelled():
            task.exception()
