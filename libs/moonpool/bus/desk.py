"""Requests of one endpoint on their way through its handler: bounded both in work and in wait."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from moonpool.bus.base import Endpoint
from moonpool.messages.errors import BugError, CapacityError, ErrorInfo, MoonpoolError, PeerError

log = logging.getLogger(__name__)

T = TypeVar("T")  # whatever the bus needs in order to reply

DRAINING = PeerError("the service is closing", code="draining", elsewhere=True).info()


class Desk(Generic[T]):
    """At most `concurrency_max` handlers run and `pending_max` requests wait; more are refused."""

    def __init__(
        self,
        endpoint: Endpoint,
        reply: Callable[[T, bytes], Awaitable[None]],
        refuse: Callable[[T, ErrorInfo], Awaitable[None]],
    ) -> None:
        self.endpoint = endpoint
        self.requests = self.errors = self.refused = 0
        self.busy_ns = 0
        self.last_error = ""
        self._reply = reply
        self._refuse = refuse
        self._waiting: deque[tuple[bytes, T]] = deque()  # len <= pending_max
        self._running = 0  # <= concurrency_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def take(self, payload: bytes, ticket: T) -> None:
        """Starts, queues or refuses one request. Never blocks."""
        self.requests += 1
        if self._closing:
            self._spawn(self._refuse(ticket, DRAINING))
        elif self._running < self.endpoint.concurrency_max:
            self._running += 1
            self._spawn(self._work(payload, ticket))
        elif len(self._waiting) < self.endpoint.pending_max:
            self._waiting.append((payload, ticket))
        else:
            self.refused += 1
            self._spawn(self._refuse(ticket, self._full()))

    async def close(self, grace_s: float) -> None:
        """Refuses what waits, lets what runs finish for `grace_s`, then cancels it. Idempotent."""
        self._closing = True
        while self._waiting:
            _, ticket = self._waiting.popleft()
            await self._refuse(ticket, DRAINING)
        others = self._tasks - {asyncio.current_task()}
        if not others:
            return
        _, late = await asyncio.wait(others, timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def stats(self) -> dict[str, int]:
        return {
            "requests": self.requests,
            "errors": self.errors,
            "refused": self.refused,
            "running": self._running,
            "waiting": len(self._waiting),
        }

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, payload: bytes, ticket: T) -> None:
        try:
            await self._serve(payload, ticket)
            while self._waiting:
                payload, ticket = self._waiting.popleft()
                await self._serve(payload, ticket)
        finally:
            self._running -= 1

    async def _serve(self, payload: bytes, ticket: T) -> None:
        started = time.perf_counter_ns()
        try:
            answer = await self.endpoint.handler(payload)
            await self._reply(ticket, answer)
        except MoonpoolError as error:
            await self._fail(ticket, error.info())
        except asyncio.CancelledError:
            await self._fail(ticket, DRAINING)
            raise
        except Exception as error:  # the top of a request: logged, counted, answered
            log.exception("handler of %s failed", self.endpoint.subject)
            await self._fail(ticket, BugError(repr(error)).info())
        finally:
            self.busy_ns += time.perf_counter_ns() - started

    async def _fail(self, ticket: T, info: ErrorInfo) -> None:
        self.errors += 1
        self.last_error = f"{info.code}: {info.message}"
        await self._refuse(ticket, info)

    def _full(self) -> ErrorInfo:
        text = f"{self.endpoint.pending_max} requests to {self.endpoint.subject} wait already"
        return CapacityError(text, code="busy", elsewhere=True).info()
