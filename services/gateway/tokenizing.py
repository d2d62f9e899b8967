"""Tokenizing beside the event loop: long prompts go to a few threads, short ones run at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from services.gateway.core.errors import Refused

T = TypeVar("T")

INLINE_CHARS_MAX = 4096  # about a millisecond
THREADS = 2
WAITING_MAX = 256


class Tokenizing:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._waiting = 0  # <= WAITING_MAX
        self._inline = self._threaded = self._refused = 0

    async def run(self, work: Callable[[], T], chars: int) -> T:
        """`work()`, for a prompt of `chars` characters. Raises what it raises, or Refused when too
        many wait. Cancelled, the caller goes at once; the thread ends its work for nobody."""
        if chars <= INLINE_CHARS_MAX:
            self._inline += 1
            return work()
        if self._waiting >= WAITING_MAX:
            self._refused += 1
            raise Refused(
                f"{WAITING_MAX} prompts wait to be tokenized", code="busy", retry_after_s=1.0
            )
        self._threaded += 1
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(self._done)
        return await future

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def stats(self) -> dict[str, int]:
        return {
            "waiting": self._waiting,
            "inline": self._inline,
            "threaded": self._threaded,
            "refused": self._refused,
        }

    def _done(self, future: "asyncio.Future[T]") -> None:
        self._waiting -= 1
