"""The step loop: asks the core what to compute, runs it on the engine's thread, delivers what
comes out. One step is under way at a time; everything else happens on the event loop meanwhile."""

import asyncio
from collections.abc import Sequence as Run
from concurrent.futures import ThreadPoolExecutor

from moonpool.engine.base import Engine, StepResult
from moonpool.instance.answers import Answers
from moonpool.instance.core import InstanceCore, Work
from moonpool.instance.effects import BlockFilled, Effect, Emit, Ended, HandOver
from moonpool.instance.hooks import StepHooks
from moonpool.instance.layers import LayersMade
from moonpool.instance.links import Links
from moonpool.instance.prompts import Job, OutputBlocks, Prompts
from moonpool.instance.sequence import Phase
from moonpool.instance.watchdog import Watchdog
from moonpool.messages import CorruptionError, PeerError
from moonpool.messages.tokens import Timings
from moonpool.runtime import EventPublisher
from moonpool.telemetry import names

IDLE_S = 0.25  # how often deadlines are looked at when nothing happens
CHECK_S = 30.0  # how often an idle worker asserts its invariants: it walks the whole pool


class Worker:
    def __init__(
        self,
        links: Links,
        core: InstanceCore,
        engine: Engine,
        prompts: Prompts,
        output: OutputBlocks,
        events: EventPublisher,
        wake: asyncio.Event,
        watchdog: Watchdog,
    ) -> None:
        self._watchdog = watchdog
        self._links = links
        self._core = core
        self._engine = engine
        self._prompts = prompts
        self._output = output
        self._events = events
        self._wake = wake
        self._answers = Answers(links)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        metrics = links.ctx.metrics
        self._step_seconds = metrics.histogram(names.DECODE_STEP_SECONDS)
        self._batch_sequences = metrics.histogram(names.DECODE_BATCH)
        self._evictions = metrics.counter(names.EVICTIONS, "hbm")
        self._evictions_seen = 0
        self._checked_s = 0.0

    async def run(self) -> None:
        """Until cancelled; a step under way is waited for, so that no thread outlives us."""
        try:
            while True:
                await self._turn()
        finally:
            self._thread.shutdown(wait=True)

    async def _turn(self) -> None:
        now_s = self._links.ctx.clock.now()
        effects = self._core.expire(now_s)
        for seq in self._core.admit(now_s):
            self._prompts.begin(seq)
        work, more = self._core.next_batch(now_s)
        await self._deliver(effects + more + self._take_effects())
        self._announce()
        if work:
            await self._deliver(await self._step(work))
        else:
            await self._idle()

    async def _idle(self) -> None:
        now_s = self._links.ctx.clock.now()
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            self._core.check()
        try:
            async with asyncio.timeout(IDLE_S):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def _step(self, work: list[Work]) -> list[Effect]:
        loop = asyncio.get_running_loop()
        made = LayersMade(loop, self._links.memory.layout.layers)
        arriving = []
        for each in work:
            seq = each.sequence
            job = self._prompts.find(seq)
            if seq.phase is Phase.PREFILL and job is not None:
                if not seq.loaded:
                    arriving.append(job.fetch.arrived)
                self._prompts.start_push(seq, each.start, each.start + each.count, made)
        hooks = StepHooks(arriving, made)
        pieces = [each.piece() for each in work]
        try:
            with self._watchdog.step():
                result = await loop.run_in_executor(self._thread, self._engine.step, pieces, hooks)
        except (PeerError, CorruptionError) as error:
            self._links.ctx.log.warning("step runs again without reused blocks error=%s", error)
            made.abort()
            self._core.abort(work, self._links.ctx.clock.now())
            for each in work:
                await self._prompts.refetch(each.sequence)
            return []
        self._observe(work, result)
        return self._core.complete(work, result, self._links.ctx.clock.now())

    def _observe(self, work: Run[Work], result: StepResult) -> None:
        seconds = result.compute_s
        running = [w for w in work if w.count == 1 and self._prompts.find(w.sequence) is None]
        if len(running) == len(work):
            self._step_seconds.observe(seconds)
            self._batch_sequences.observe(len(work))
            self._links.seen.stepped(len(work), sum(w.start + 1 for w in work), seconds)
            return
        tokens = sum(w.count for w in work)
        for each in work:
            job = self._prompts.find(each.sequence)
            if job is not None:
                job.compute_s += seconds * each.count / tokens
                job.waited_s += result.waited_s

    # -- delivery ---------------------------------------------------------------------------

    async def _deliver(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Emit():
                    await self._emit(effect)
                case HandOver(sequence, finish):
                    job = self._prompts.find(sequence)
                    assert job is not None
                    job.settle(finish)
                case BlockFilled():
                    self._output.filled(effect)
                case Ended(sequence):
                    self._prompts.drop(sequence)
                    await self._answers.ended(effect)

    async def _emit(self, emit: Emit) -> None:
        job = self._prompts.find(emit.sequence)
        if job is None or job.first_emitted:
            await self._answers.token(emit)
            return
        job.first_emitted = True
        if emit.sequence.decodes_here:
            job.settle(emit.finish)
        await self._answers.token(emit, self._cached(job), self._timings(job))
        self._count(job)

    def _cached(self, job: Job) -> dict[str, int]:
        seq = job.seq
        block_tokens = self._links.memory.layout.block_tokens
        cached = {"hbm": seq.matched_blocks * block_tokens}
        if seq.fetched_blocks > seq.matched_blocks:
            for tier, tokens in job.fetch.tokens_by_tier.items():
                cached[tier] = cached.get(tier, 0) + tokens
        return {tier: tokens for tier, tokens in cached.items() if tokens}

    def _timings(self, job: Job) -> Timings:
        return Timings(
            queue_s=job.seq.started_at_s - job.seq.queued_at_s,
            fetch_s=job.waited_s,
            compute_s=job.compute_s,
        )

    def _count(self, job: Job) -> None:
        seq, metrics = job.seq, self._links.ctx.metrics
        cached = self._cached(job)
        reused = sum(cached.values())
        full = reused >= len(seq.keys) * seq.block_tokens and reused > 0
        kind = "full" if full else "incremental" if reused else "none"
        metrics.counter(names.HIT_REQUESTS, kind).inc()
        for tier, tokens in cached.items():
            metrics.counter(names.HIT_TOKENS, tier, kind).inc(tokens)
        metrics.counter(names.MISS_TOKENS).inc(seq.prompt_tokens - reused)
        queued_s = seq.started_at_s - seq.queued_at_s
        metrics.histogram(names.PREFILL_QUEUE_SECONDS).observe(queued_s)
        metrics.histogram(names.PREFILL_COMPUTE_SECONDS).observe(job.compute_s)
        self._links.seen.computed(seq.prompt_tokens - reused, reused, job.compute_s)

    def _take_effects(self) -> list[Effect]:
        effects, self._prompts.effects = self._prompts.effects, []
        return effects

    def _announce(self) -> None:
        """Tells conductors what became findable in our pool, and what vanished."""
        for key, held in self._core.pool.take_changes():
            if held:
                self._events.stored("hbm", [key])
            else:
                self._events.removed("hbm", [key])
                self._links.sums.forget(key)
        new = self._core.pool.evictions - self._evictions_seen
        if new:
            self._evictions.inc(new)
            self._evictions_seen += new
