"""Load reports: ten a second, and at once when something changed."""

from itertools import accumulate

from moonpool.instance.core import InstanceCore
from moonpool.instance.doors import Doors
from moonpool.instance.links import Links
from moonpool.instance.reads import PoolReads
from moonpool.instance.sequence import Phase
from moonpool.messages.codec import encode
from moonpool.messages.load import PROMPTS_MAX, AnswerSample, LoadReport, QueuedPrompt, request_tag
from moonpool.runtime import TransferMetrics
from moonpool.telemetry import names

PERIOD_S = 0.1


class Reporter:
    def __init__(self, links: Links, core: InstanceCore, doors: Doors, reads: PoolReads) -> None:
        self._links = links
        self._core = core
        self._doors = doors
        self._reads = reads
        self._seq = 0
        metrics = links.ctx.metrics
        self._queue_depth = metrics.gauge(names.PREFILL_QUEUE_DEPTH)
        self._queue_tokens = metrics.gauge(names.PREFILL_QUEUE_TOKENS)
        self._slots_used = metrics.gauge(names.DECODE_SLOTS_USED)
        self._blocks_used = metrics.gauge(names.KV_BLOCKS_USED)
        self._blocks_cached = metrics.gauge(names.KV_BLOCKS_CACHED)
        self._leases = metrics.gauge(names.LEASES)
        self._moved = TransferMetrics(metrics, links.transfer)
        metrics.gauge(names.DECODE_SLOTS).set(core.limits.sequences_max)
        metrics.gauge(names.KV_BLOCKS).set(core.pool.blocks_total)

    async def run(self) -> None:
        """Until cancelled."""
        ctx = self._links.ctx
        while True:
            await self._doors.sweep()
            self._reads.expire()
            report = self.report()
            self._show(report)
            await ctx.bus.publish(ctx.subjects.load(ctx.id), encode(report))
            await ctx.clock.sleep(PERIOD_S)

    def report(self) -> LoadReport:
        core = self._core
        self._seq += 1
        compute, transfers, steps = self._links.seen.take()
        return LoadReport(
            id=self._links.ctx.id,
            epoch=self._links.ctx.epoch,
            seq=self._seq,
            duty=self._doors.duty,
            state="draining" if self._doors.draining else "ready",
            queued_requests=core.in_phase(Phase.QUEUED, Phase.LOADING, Phase.PREFILL),
            queued_tokens=core.tokens_to_compute(),
            running=core.in_phase(Phase.RUNNING, Phase.CLOSING),
            reserved=core.in_phase(Phase.RESERVED),
            slots_total=core.limits.sequences_max,
            context_tokens=core.context_tokens(),
            blocks_free=core.pool.blocks_free,
            blocks_total=core.pool.blocks_total,
            compute=compute,
            transfers=transfers,
            steps=steps,
            prompts=self._prompts(),
            answers=self._answers(),
        )

    def _answers(self) -> list[AnswerSample]:
        """What ended since the last report."""
        ended = list(self._core.ended)
        self._core.ended.clear()
        return ended

    def _prompts(self) -> list[QueuedPrompt]:
        """What waits or is being computed, in turn."""
        now_s = self._links.ctx.clock.now()
        waiting = self._core.in_turn(now_s, Phase.QUEUED, Phase.LOADING, Phase.PREFILL)
        # Fair shares may put a prompt behind one that is due later: then it counts as due with it.
        dues = accumulate((seq.due_s - now_s for seq in waiting), max)
        return [
            QueuedPrompt(
                seq.prompt_tokens - seq.computed, seq.computed, due_in_s, request_tag(seq.request)
            )
            for seq, due_in_s in zip(waiting[:PROMPTS_MAX], dues, strict=False)
        ]

    def _show(self, report: LoadReport) -> None:
        self._queue_depth.set(report.queued_requests)
        self._queue_tokens.set(report.queued_tokens)
        self._slots_used.set(report.running + report.reserved)
        self._blocks_used.set(report.blocks_total - report.blocks_free)
        self._blocks_cached.set(self._core.pool.blocks_evictable)
        self._leases.set(self._reads.leases)
        self._moved.show()
