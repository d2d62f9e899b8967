"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Self, TypeVar

from moonpool.client.errors import DeadlineOver

A = TypeVar("A")

END_S = 10.0


class OwnLoop:
    """Make it with `run`. Any number of threads may use it at once. What takes longer than
    `deadline_s` is cancelled and raises DeadlineOver."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._loop = loop

    @classmethod
    @contextmanager
    def run(cls, name: str, deadline_s: float) -> Iterator[Self]:
        """Runs while inside; `name` is the thread's."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
        thread.start()
        try:
            yield cls(loop, deadline_s)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_S)
            if not thread.is_alive():
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()

    def do(self, work: Coroutine[Any, Any, A]) -> A:
        """What it returns or raises. Raises DeadlineOver; a RuntimeError after the end."""
        if not self._loop.is_running():
            work.close()
            raise RuntimeError("this store client is closed")
        try:
            return asyncio.run_coroutine_threadsafe(self._within(work), self._loop).result()
        except TimeoutError as error:
            raise DeadlineOver(f"not done within {self.deadline_s:g} s") from error

    @contextmanager
    def inside(self, context: AbstractAsyncContextManager[A]) -> Iterator[A]:
        """An asynchronous context as one of the calling thread; entering and leaving have a
        deadline, the time inside has none."""
        got = self.do(_enter(context))
        try:
            yield got
        except BaseException as error:
            if not self.do(_leave(context, error)):
                raise
        else:
            self.do(_leave(context, None))

    async def _within(self, work: Coroutine[Any, Any, A]) -> A:
        async with asyncio.timeout(self.deadline_s):
            return await work


async def _enter(context: AbstractAsyncContextManager[A]) -> A:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[A], error: BaseException | None) -> bool:
    if error is None:
        return bool(await context.__aexit__(None, None, None))
    return bool(await context.__aexit__(type(error), error, error.__traceback__))
