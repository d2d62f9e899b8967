"""Requests under way, and the one place where they end."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer.errors import TransferCancelled, TransferTimeout
from moonpool.transfer.job import Job

CANCEL_GRACE_S = 0.5  # a running slice may finish for so long after cancel(), then it is cut


class TransferBatch:
    """Awaiting it returns when all requests are done and raises the first error.

    When an await has returned or raised, *in any way*, nothing of this batch touches memory any
    more: cancelling the awaiting task cancels the batch and waits for what runs (at most
    `CANCEL_GRACE_S` and a moment) before it lets the cancellation through.
    """

    __slots__ = (
        "_cancelled",
        "_deadline_s",
        "_errors",
        "_first_error",
        "_jobs",
        "_left",
        "_loop",
        "_open",
        "_stop_job",
        "_timer",
        "_waiters",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        count: int,
        deadline_s: float,
        stop_job: Callable[[Job, MoonpoolError], None],
    ) -> None:
        self._loop = loop
        self._stop_job = stop_job
        self._jobs: list[Job] = []
        self._left = [0] * count  # slices that each request still waits for
        self._open = 0  # jobs that have not ended
        self._errors: dict[int, Exception] = {}
        self._first_error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._deadline_s = deadline_s
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False

    def __len__(self) -> int:
        return len(self._left)

    def __await__(self) -> Generator[Any, None, None]:
        if self._open or self._first_error is not None:
            yield from self._wait().__await__()

    async def _wait(self) -> None:
        if self._open:
            try:
                await self._settle()
            except asyncio.CancelledError:
                self.cancel()
                await self.settled()
                raise
        if self._first_error is not None:
            raise self._first_error

    async def settled(self) -> None:
        """Returns when nothing of this batch can touch memory any more. Raises nothing of its own,
        cancels nothing."""
        while self._open:
            await self._settle()

    async def _settle(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    @property
    def done(self) -> bool:
        """All requests have ended, well or not."""
        return not self._open

    def status(self, index: int) -> str:
        """ "waiting", "running", "done", "failed" or "cancelled"."""
        error = self.error(index)
        if error is not None:
            return "cancelled" if isinstance(error, TransferCancelled) else "failed"
        if not self._left[index]:
            return "done"
        mine = (job for job in self._jobs if job.claimed and index in job.indices)
        return "running" if any(mine) else "waiting"

    def error(self, index: int) -> Exception | None:
        """Why request `index` failed; None while it has not."""
        return self._errors.get(range(len(self))[index])

    def cancel(self) -> None:
        """What has not begun never will; what runs is given a moment, then cut. Idempotent."""
        if self._cancelled or not self._open:
            return
        self._cancelled = True
        reason = TransferCancelled("the batch was cancelled")
        self._stop(reason, None)
        if self._open:
            self._set_timer(CANCEL_GRACE_S, lambda: self._stop(reason, reason))

    # What the engine calls.

    def begin(self, jobs: list[Job]) -> None:
        """All of its jobs; none has started."""
        self._jobs = jobs
        self._open = len(jobs)
        left = self._left
        if len(jobs) == 1:
            self._left = [1] * len(left)
            return
        for job in jobs:
            for index in job.indices:
                left[index] += 1

    def arm(self) -> None:
        """Starts the clock, when the jobs did not end at once."""
        if self._open:
            self._set_timer(self._deadline_s, self._expire)

    def ended(self, job: Job, error: Exception | None) -> None:
        """`job` is over."""
        if error is None:
            left = self._left
            if len(self._jobs) == 1:
                self._left = [0] * len(left)
            else:
                for index in job.indices:
                    left[index] -= 1
        else:
            self._first_error = self._first_error or error
            for index in job.indices:
                self._errors.setdefault(index, error)
        self._open -= 1
        if not self._open:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._jobs = []  # they refer to us and to memory: keep neither alive
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def _expire(self) -> None:
        late = f"within {self._deadline_s:g} s"
        self._stop(TransferTimeout(f"not begun {late}"), TransferTimeout(f"not done {late}"))

    def _set_timer(self, delay_s: float, then: Callable[[], None]) -> None:
        now_s = self._loop.time()
        if self._timer is not None:
            if self._timer.when() <= now_s + delay_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, then)

    def _stop(self, waiting: MoonpoolError | None, running: MoonpoolError | None) -> None:
        """Ends jobs that wait and jobs that run, each kind where it is given a reason."""
        for job in self._jobs:
            if not self._open:
                return
            if not job.claimed and waiting is not None:
                self._stop_job(job, waiting)
            elif job.claimed and running is not None:
                self._stop_job(job, running)
