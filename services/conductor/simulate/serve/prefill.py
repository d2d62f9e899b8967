"""A prefill instance: a queue of prompts by due time, one computed at a time, chunk by chunk.

The order is that of the real instance: who is due first runs first, and between two chunks another
prompt may come first. What a plan wants fetched is on its way while the prompt waits; what is in
the pool when the prompt's turn comes is reused, whoever computed it.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from moonpool.messages.load import ComputeSample
from moonpool.messages.plan import Plan
from services.conductor.simulate.serve.agenda import Agenda
from services.conductor.simulate.serve.cache import BlockCache
from services.conductor.simulate.serve.machine import Machine
from services.conductor.simulate.serve.traffic import Ask


@dataclass(slots=True, eq=False)
class Job:
    """One prompt at one instance."""

    ask: Ask
    plan: Plan
    submitted_s: float
    due_s: float
    order: int
    runs_left: int = 0  # fetches on their way
    fetched: list[tuple[int, int]] = field(default_factory=list)  # block ranges that arrived
    arrived_s: float = 0.0  # when the last fetch was here
    reused_blocks: int = -1  # -1: its turn has not come yet
    at_token: int = 0  # computed up to here
    compute_s: float = 0.0  # spent so far
    started_s: float = 0.0

    def __lt__(self, other: "Job") -> bool:
        return (self.due_s, self.order) < (other.due_s, other.order)


class PrefillModel:
    """One instance. `computed(job)` hears when a prompt is done."""

    def __init__(
        self,
        id: str,
        machine: Machine,
        cache: BlockCache,
        agenda: Agenda,
        dice: Random,
        computed: Callable[[Job], None],
        started: Callable[[Job], None],
        changed: Callable[[str], None],
        let_go: Callable[[list[int]], None] = lambda blocks: None,
    ) -> None:
        self.id = id
        self.cache = cache
        self._let_go = let_go
        self._machine = machine
        self._agenda = agenda
        self._dice = dice
        self._computed = computed
        self._started = started
        self._changed = changed
        self._queue: list[Job] = []
        self._orders = 0
        self.running: Job | None = None
        self._chunk_from_s = 0.0  # of the stretch that runs
        self._chunk_slow = 1.0
        self._chunk_end = 0  # token at which it ends
        self._version = 0
        self.busy_s = 0.0
        self.samples: list[ComputeSample] = []

    # -- what comes in

    def submit(self, ask: Ask, plan: Plan, due_s: float) -> Job:
        """Queues a prompt; the caller starts its fetches and says so by `fetching`."""
        self._orders += 1
        return Job(ask, plan, self._agenda.now_s, due_s, self._orders)

    def enqueue(self, job: Job) -> None:
        heapq.heappush(self._queue, job)
        running = self.running
        if running is None:
            self._next()
        elif job < running:
            self._cut()

    def arrived(self, job: Job, start: int, end: int, whole: bool) -> None:
        """A fetch ended; `whole`: its source had the blocks."""
        job.runs_left -= 1
        job.arrived_s = self._agenda.now_s
        if whole:
            job.fetched.append((start, end))
        if job is self.running and not job.runs_left and job.at_token >= job.ask.prompt_tokens:
            self._finish(job)

    # -- what it does

    def _next(self) -> None:
        if not self._queue:
            return
        job = self.running = heapq.heappop(self._queue)
        if job.reused_blocks < 0:
            self._begin(job)
        self._run(job, job.ask.prompt_tokens)

    def _begin(self, job: Job) -> None:
        """Its turn comes for the first time: what need not be computed?"""
        ask, now_s = job.ask, self._agenda.now_s
        usable = min(len(ask.blocks), (ask.prompt_tokens - 1) // self._machine.block_tokens)
        end = self.cache.longest(ask.blocks)
        coming = sorted([*job.fetched, *self._coming(job)])
        for start, stop in coming:
            if start <= end < stop:
                end = self.cache.longest(ask.blocks, stop)
        job.reused_blocks = min(end, usable)
        job.at_token = job.reused_blocks * self._machine.block_tokens
        job.started_s = now_s
        self._started(job)

    @staticmethod
    def _coming(job: Job) -> list[tuple[int, int]]:
        """Ranges still on their way: computing goes on behind them, layer by layer."""
        if not job.runs_left:
            return []
        here = set(job.fetched)
        return [(r.start, r.end) for r in job.plan.runs if (r.start, r.end) not in here]

    def _run(self, job: Job, until: int) -> None:
        """Computes up to token `until`, without looking up."""
        self._chunk_from_s = self._agenda.now_s
        self._chunk_slow = max(0.2, self._dice.gauss(1.0, self._machine.noise))
        self._chunk_end = until
        self._version += 1
        seconds = self._stretch_s(job, until) * self._chunk_slow
        self._agenda.after(seconds, self._stretch_done, job, self._version)

    def _stretch_s(self, job: Job, until: int) -> float:
        seconds = self._machine.span_s(job.at_token, until)
        if job.compute_s == 0.0:
            seconds += self._machine.prefill.start_s + self._machine.reload_s(job.at_token)
        return seconds

    def _cut(self) -> None:
        """Somebody due earlier waits: stop at the end of the chunk that runs."""
        job = self.running
        assert job is not None
        tokens = job.ask.prompt_tokens
        if self._chunk_end < tokens or job.at_token >= tokens:
            return  # it stops soon anyhow, or only waits for its blocks
        elapsed_s = self._agenda.now_s - self._chunk_from_s
        size = self._machine.prefill.chunk_tokens
        low, high = 1, max(1, math.ceil((tokens - job.at_token) / size))
        while low < high:  # the first chunk's end that lies ahead
            middle = (low + high) >> 1
            end = job.at_token + middle * size
            if self._stretch_s(job, min(end, tokens)) * self._chunk_slow >= elapsed_s:
                high = middle
            else:
                low = middle + 1
        end = job.at_token + low * size
        if end >= tokens:
            return
        self._chunk_end = end
        self._version += 1
        at_s = self._chunk_from_s + self._stretch_s(job, end) * self._chunk_slow
        self._agenda.at(at_s, self._stretch_done, job, self._version)

    def _stretch_done(self, job: Job, version: int) -> None:
        if version != self._version:
            return
        took_s = self._agenda.now_s - self._chunk_from_s
        job.compute_s += took_s
        self.busy_s += took_s
        job.at_token = self._chunk_end
        if job.at_token < job.ask.prompt_tokens:
            heapq.heappush(self._queue, job)
            self.running = None
            self._next()
        elif not job.runs_left:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        cached = job.reused_blocks * self._machine.block_tokens
        new = job.ask.prompt_tokens - cached
        self.samples.append(ComputeSample(new, cached, job.compute_s))
        self._let_go(self.cache.add(job.ask.blocks, self._agenda.now_s))
        self.running = None
        self._computed(job)
        self._changed(self.id)
        if self.running is None:
            self._next()

    # -- what it says

    @property
    def now_s(self) -> float:
        return self._agenda.now_s

    def jobs(self) -> list[Job]:
        """All that wait or run, in the order of their turns."""
        waiting = sorted(self._queue)
        return [self.running, *waiting] if self.running else waiting

    def left_s(self, job: Job) -> float:
        """Seconds of compute that a prompt still needs, as the model has it."""
        machine, tokens = self._machine, job.ask.prompt_tokens
        if job.reused_blocks < 0:
            reused = job.plan.runs[-1].end if job.plan.runs else 0
            return machine.prefill_s(tokens, min(reused * machine.block_tokens, tokens - 1))
        left = self._stretch_s(job, tokens)
        if job is self.running:
            left -= (self._agenda.now_s - self._chunk_from_s) / self._chunk_slow
        return max(0.0, left)

    def progress(self, job: Job) -> int:
        """Tokens computed, in whole chunks."""
        if job is not self.running or self._chunk_end <= job.at_token:
            return job.at_token
        elapsed_s = (self._agenda.now_s - self._chunk_from_s) / self._chunk_slow
        share = min(1.0, elapsed_s / self._stretch_s(job, self._chunk_end))
        size = self._machine.prefill.chunk_tokens
        return job.at_token + int(share * (self._chunk_end - job.at_token) / size) * size

    def queue_s(self) -> float:
        return sum(map(self.left_s, self.jobs()))

    def check(self) -> None:
        self.cache.check()
        assert self.running is not None or not self._queue, "it never idles while prompts wait"
        for job in self._queue:
            assert job.at_token < job.ask.prompt_tokens, "what waits is not done"
