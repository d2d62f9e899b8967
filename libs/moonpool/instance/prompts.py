"""The life of each prompt on an instance: fetch what is reused, push what is made, hand over."""

import asyncio
from dataclasses import dataclass, field

from moonpool.bus import NoResponder
from moonpool.instance.core import InstanceCore
from moonpool.instance.effects import BlockFilled, Effect
from moonpool.instance.fetch import LOWER_TIERS, NODE_TIERS, PrefixFetch
from moonpool.instance.layers import LayersMade
from moonpool.instance.links import Links
from moonpool.instance.push import PromptPush
from moonpool.instance.sequence import Phase, Sequence
from moonpool.instance.store_writer import Put, StoreWriter
from moonpool.messages import MoonpoolError, PeerError, error_from
from moonpool.messages.codec import decode, encode
from moonpool.messages.decode import StartReply, StartRequest
from moonpool.messages.ids import RequestId
from moonpool.messages.prefill import CancelRequest, SubmitRequest

START_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 2.0
PUSHES_AGAIN_MAX = 1  # after the decode found blocks corrupt


@dataclass(slots=True, eq=False)
class Job:
    """One prompt. `computed` is set when its last chunk is done (to the finish of the answer, ""
    while it goes on) or when it ended before (to None)."""

    seq: Sequence
    submit: SubmitRequest
    fetch: PrefixFetch
    push: PromptPush
    computed: asyncio.Future[str | None]
    fetching: asyncio.Task[None] | None = None
    pushing: asyncio.Task[None] | None = None
    error: MoonpoolError | None = None
    accepted: bool = False  # by the decode
    compute_s: float = 0.0
    waited_s: float = 0.0
    first_emitted: bool = False
    puts: list[asyncio.Task[None]] = field(default_factory=list)

    def settle(self, finish: str | None) -> None:
        if not self.computed.done():
            self.computed.set_result(finish)


class Prompts:
    """All prompts of an instance. Every task lives in the group handed in, and ends on its own."""

    def __init__(
        self,
        links: Links,
        core: InstanceCore,
        writer: StoreWriter,
        tasks: asyncio.TaskGroup,
        wake: asyncio.Event,
    ) -> None:
        self._links = links
        self._core = core
        self._writer = writer
        self._tasks = tasks
        self._wake = wake
        self._jobs: dict[tuple[RequestId, int], Job] = {}
        self.effects: list[Effect] = []  # of our tasks, for the worker to deliver

    def find(self, seq: Sequence) -> Job | None:
        return self._jobs.get(seq.id)

    def add(self, seq: Sequence, submit: SubmitRequest) -> None:
        """A prompt that the core has queued."""
        push = PromptPush(self._links, self._writer, seq, submit.reservation)
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        fetch = PrefixFetch(self._links, seq)
        self._jobs[seq.id] = Job(seq, submit, fetch, push, future)
        waits = self._core.in_phase(Phase.QUEUED) > 1  # others came before it
        tiers = NODE_TIERS if waits else LOWER_TIERS
        if any(run.tier in tiers for run in submit.plan.runs):
            ahead = fetch.ahead(submit.plan.runs, tiers)
            self._tasks.create_task(ahead, name=f"ahead {seq.request}")

    def begin(self, seq: Sequence) -> None:
        """The core gave the prompt its blocks."""
        job = self._jobs[seq.id]
        self._core.hold(seq)
        self._tasks.create_task(self._live(job), name=f"prompt {seq.request}")

    def drop(self, seq: Sequence) -> None:
        """The core ended a prompt: wind its job up. One that never began has nothing to stop."""
        job = self._jobs.get(seq.id)
        if job is None:
            return
        job.settle(None)
        if not job.seq.blocks and job.seq.phase is Phase.DONE:
            del self._jobs[seq.id]
            self._tasks.create_task(self._writer_stopped(job))

    def start_push(self, seq: Sequence, start: int, end: int, made: LayersMade) -> None:
        """A step over tokens `[start, end)` of the prompt begins."""
        job = self._jobs[seq.id]
        self._core.hold(seq)
        job.pushing = self._tasks.create_task(self._push(job, job.pushing, start, end, made))

    async def refetch(self, seq: Sequence) -> None:
        """After an aborted step: once nothing is written into its blocks, compute them instead."""
        job = self._jobs.get(seq.id)
        if job is None or job.fetching is None or job.fetch.arrived.failure is None:
            return
        job.fetch.stop()
        await job.fetching
        self._core.fetch_failed(seq)

    # -- one prompt -------------------------------------------------------------------------

    async def _live(self, job: Job) -> None:
        seq = job.seq
        try:
            await self._prepare(job)
            finish = await job.computed
            if finish is not None and job.error is None:
                await self._finish(job, finish)
        finally:
            job.fetch.stop()
            job.push.stop()
            await self._quiet(job)
            now_s = self._links.ctx.clock.now()
            if not seq.decodes_here or job.error is not None:
                self.effects += self._core.end(seq, job.error, now_s)
            self._core.unhold(seq, now_s)
            self._jobs.pop(seq.id, None)
            self._wake.set()
            if not job.accepted:
                await self._writer_stopped(job)

    async def _prepare(self, job: Job) -> None:
        seq = job.seq
        block_tokens = self._links.memory.layout.block_tokens
        upto = min(len(seq.keys), (seq.prompt_tokens - 1) // block_tokens)
        have = await job.fetch.open(job.submit.plan.runs, upto)
        if seq.phase is not Phase.LOADING:
            await job.fetch.close()
            return
        self._core.ready(seq, have)
        if have > seq.matched_blocks:
            self._core.hold(seq)
            job.fetching = self._tasks.create_task(self._fetch(job))
        else:
            await job.fetch.close()
        self._wake.set()

    async def _fetch(self, job: Job) -> None:
        clock = self._links.ctx.clock
        await job.fetch.run()
        if job.fetch.arrived.failure is None:
            self._core.fetched(job.seq)
        elif not job.seq.in_step:
            # in a step the engine's wait raises, and the worker calls `refetch`
            self._core.fetch_failed(job.seq)
        self._core.unhold(job.seq, clock.now())
        self._wake.set()

    async def _push(
        self,
        job: Job,
        before: asyncio.Task[None] | None,
        start: int,
        end: int,
        made: LayersMade,
    ) -> None:
        try:
            if before is not None:
                await before
            if job.error is None:
                opened = await job.push.chunk(start, end, made)
                if opened is not None:
                    self._core.hold(job.seq)
                    self._tasks.create_task(self._finish_put(job, opened))
        except MoonpoolError as error:
            job.error = PeerError(
                f"KV did not reach the decode: {error.message}", code="push_failed", elsewhere=True
            )
            job.settle(None)
        finally:
            self._core.unhold(job.seq, self._links.ctx.clock.now())

    async def _finish_put(self, job: Job, put: Put) -> None:
        await self._writer.finish(put, job.push.put_sums(put))
        self._core.unhold(job.seq, self._links.ctx.clock.now())

    async def _quiet(self, job: Job) -> None:
        """Returns when nothing reads or writes the prompt's blocks for this job any more."""
        for task in (job.fetching, job.pushing):
            if task is not None:
                await task

    async def _finish(self, job: Job, finish: str) -> None:
        """All chunks are computed: wait until their KV has arrived, then start the decode."""
        if job.pushing is not None:
            await job.pushing
        if finish or job.seq.decodes_here or job.error is not None:
            return
        try:
            for _ in range(PUSHES_AGAIN_MAX + 1):
                reply = await self._start(job)
                if reply.refusal is None:
                    job.accepted = True
                    return
                if not reply.bad_blocks:
                    break
                await job.push.again(reply.bad_blocks)
            assert reply.refusal is not None
            error = error_from(reply.refusal)
            error.elsewhere = True
            job.error = error
        except MoonpoolError as error:
            gone = isinstance(error, NoResponder)
            job.error = PeerError(
                f"the decode {'is gone' if gone else 'did not start'}: {error.message}",
                code="decode_lost",
                elsewhere=True,
            )

    async def _start(self, job: Job) -> StartReply:
        seq, ctx = job.seq, self._links.ctx
        now_s = ctx.clock.now()
        request = StartRequest(
            request=seq.request,
            attempt=seq.attempt,
            tenant=seq.tenant,
            root=seq.root,
            keys=job.submit.keys,
            tokens=job.submit.tokens,
            output_start=seq.output_start,
            first_token=int(seq.tokens[-1]),
            checksums=job.push.checksums(),
            sampling=seq.sampling,
            store=seq.store,
            deadline_s=max(seq.deadline_s - now_s, 0.1),
        )
        assert job.submit.reservation is not None
        subject = ctx.subjects.decode(job.submit.reservation.decode, "start")
        return decode(await ctx.bus.request(subject, encode(request), START_TIMEOUT_S), StartReply)

    async def _writer_stopped(self, job: Job) -> None:
        """Lets the decode free what it reserved: nothing of ours writes there any more."""
        if job.submit.reservation is None:
            return
        ctx = self._links.ctx
        request = CancelRequest(job.seq.request, job.seq.attempt, writer_stopped=True)
        subject = ctx.subjects.decode(job.submit.reservation.decode, "cancel")
        try:
            await ctx.bus.request(subject, encode(request), CANCEL_TIMEOUT_S)
        except MoonpoolError as error:
            # The decode frees the place by itself when its quarantine is over, or it is gone.
            ctx.log.info("decode not told to free request=%s error=%s", job.seq.request, error)


class OutputBlocks:
    """Writes blocks that fill during decode to the store, in the background, within a bound."""

    def __init__(
        self, links: Links, core: InstanceCore, writer: StoreWriter, tasks: asyncio.TaskGroup
    ) -> None:
        self._links = links
        self._core = core
        self._writer = writer
        self._tasks = tasks

    def filled(self, effect: BlockFilled) -> None:
        if effect.sequence.store is None or self._writer.full:
            self._writer.skipped()
            self._core.give_back(effect.block, self._links.ctx.clock.now())
            return
        self._tasks.create_task(self._write(effect))

    async def _write(self, effect: BlockFilled) -> None:
        seq = effect.sequence
        assert seq.store is not None
        try:
            await self._writer.put_block(
                seq.store, seq.tenant, effect.key, effect.block, run_blocks=len(seq.keys)
            )
        finally:
            self._core.give_back(effect.block, self._links.ctx.clock.now())
