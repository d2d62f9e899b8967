"""What an instance computes next: admission to the pool, chunks of prompts, the continuous batch.

Pure: events and the time come in, batches and effects go out. Prefill, decode and colocated
instances run this same core; the role only decides which of its doors are open.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence as Run
from dataclasses import dataclass

from moonpool.engine.base import Piece, SampleSpec, StepResult
from moonpool.instance.effects import BlockFilled, Effect, Emit, Ended, HandOver
from moonpool.instance.errors import DeadlineExceeded, Preempted, QueueFull, StartedTooLate
from moonpool.instance.queueing import FairQueue
from moonpool.instance.sequence import Phase, Sequence
from moonpool.kv import BlockHint, BlockPool
from moonpool.messages.errors import CapacityError, MoonpoolError
from moonpool.messages.ids import RequestId
from moonpool.messages.load import AnswerSample, request_tag

RETRY_LATE_S = 1.0  # the queue was longer than the caller's patience: it may be shorter then


ENDED_MAX = 1024  # answers that ended between two load reports; of more, the oldest are forgotten


@dataclass(frozen=True, slots=True)
class Limits:
    block_tokens: int
    context_tokens: int
    eos_token_ids: frozenset[int]
    chunk_tokens: int  # a multiple of block_tokens
    sequences_max: int
    queue_max: int
    quarantine_s: float = 20.0  # longer than any transfer into a reservation can last


@dataclass(slots=True)
class Work:
    """One sequence's share of a step: tokens `[start, start + count)`."""

    sequence: Sequence
    start: int
    count: int
    samples: bool

    def piece(self) -> Piece:
        seq = self.sequence
        end = self.start + self.count
        sample = None
        if self.samples:
            sample = SampleSpec(
                seq.sampling, seq.tokens[:end], seq.output_start, end - seq.output_start
            )
        return Piece(seq.tokens[self.start : end], self.start, seq.blocks, sample)


class InstanceCore:
    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        assert limits.chunk_tokens % limits.block_tokens == 0
        self.limits = limits
        self.pool = pool
        # every sequence that holds a place, by (request, attempt), oldest first
        self._all: OrderedDict[tuple[RequestId, int], Sequence] = OrderedDict()
        self._queue = FairQueue()
        self.preemptions = 0
        self.ended: deque[AnswerSample] = deque(maxlen=ENDED_MAX)  # for the next load report

    # -- doors ------------------------------------------------------------------------------

    def find(self, request: RequestId, attempt: int) -> Sequence | None:
        return self._all.get((request, attempt))

    def submit(self, seq: Sequence, now_s: float) -> None:
        """Queues a prompt. Raises QueueFull, or CapacityError when it can never fit."""
        if self.in_phase(Phase.QUEUED) >= self.limits.queue_max:
            raise QueueFull(f"{self.limits.queue_max} prompts are waiting already", elsewhere=True)
        self._fits(seq.prompt_tokens)
        seq.queued_at_s = now_s
        self._all[seq.id] = seq

    def reserve(self, seq: Sequence, now_s: float) -> int:
        """Holds a decode's place with blocks for the whole prompt; returns how many leading blocks
        are here already. The remote writer is a user of the blocks until `join` or `unhold`.
        Raises CapacityError (`elsewhere`) when slots or blocks are out."""
        if self.decoding() >= self.limits.sequences_max:
            raise CapacityError("no decode slot is free", code="kv_space", elsewhere=True)
        self._fits(seq.prompt_tokens)
        if not self._place(seq, len(seq.keys), now_s):
            raise CapacityError("no KV blocks are free", code="kv_space", elsewhere=True)
        seq.phase = Phase.RESERVED
        seq.users = 1
        self._all[seq.id] = seq
        return seq.matched_blocks

    def join(self, seq: Sequence, first_token: int) -> None:
        """A reserved sequence whose prompt KV is complete and verified enters the batch."""
        assert seq.phase is Phase.RESERVED
        seq.users -= 1
        seq.computed = seq.prompt_tokens
        self._publish(seq)
        seq.append(first_token)
        seq.phase = Phase.RUNNING

    def admit(self, now_s: float) -> list[Sequence]:
        """Gives blocks to waiting prompts, in turn, as long as there are any. The caller finds out
        what it can fetch for each and then calls `ready`."""
        admitted = []
        for seq in self.in_turn(now_s, Phase.QUEUED):
            if self.in_phase(Phase.LOADING, Phase.PREFILL) >= self.limits.sequences_max:
                break
            if seq.decodes_here and self.decoding() >= self.limits.sequences_max:
                break
            if not self._place(seq, self._reusable_blocks(seq), now_s):
                break
            seq.phase = Phase.LOADING
            admitted.append(seq)
        return admitted

    def ready(self, seq: Sequence, fetched_blocks: int) -> None:
        """The prompt may be computed; its leading `fetched_blocks` blocks are here or arriving."""
        assert seq.phase is Phase.LOADING
        assert fetched_blocks >= seq.matched_blocks
        seq.fetched_blocks = fetched_blocks
        seq.loaded = fetched_blocks == seq.matched_blocks
        seq.computed = fetched_blocks * self.limits.block_tokens
        seq.phase = Phase.PREFILL

    def fetched(self, seq: Sequence) -> None:
        """All blocks being fetched have arrived and been verified."""
        if seq.phase is Phase.PREFILL:
            seq.loaded = True
            self._publish(seq)

    def fetch_failed(self, seq: Sequence) -> None:
        """Compute what could not be fetched. Never called while the sequence is in a step."""
        assert not seq.in_step
        if seq.phase is Phase.PREFILL:
            seq.loaded = True
            seq.fetched_blocks = seq.matched_blocks
            seq.computed = seq.matched_blocks * self.limits.block_tokens

    def hold(self, seq: Sequence) -> None:
        """Somebody (a fetch, a push) uses the sequence's blocks until `unhold`."""
        assert seq.phase is not Phase.DONE
        seq.users += 1

    def unhold(self, seq: Sequence, now_s: float) -> None:
        assert seq.users > 0
        seq.users -= 1
        if seq.phase is Phase.ENDING and seq.users == 0:
            self._free(seq, now_s)

    def writer_stopped(self, seq: Sequence, now_s: float) -> None:
        """The remote writer of an ended reservation will write no more. Idempotent."""
        if seq.phase is Phase.ENDING and seq.quarantined:
            seq.quarantined = False
            self.unhold(seq, now_s)

    def give_back(self, block: int, now_s: float) -> None:
        """The reference that a `BlockFilled` carried."""
        self.pool.release([block], now_s)

    def end(self, seq: Sequence, error: MoonpoolError | None, now_s: float) -> list[Effect]:
        """The sequence is over; its blocks are freed as soon as nobody uses them. Idempotent."""
        if seq.phase in (Phase.ENDING, Phase.DONE):
            return []
        if seq.decodes_here or seq.phase in (Phase.RESERVED, Phase.RUNNING, Phase.CLOSING):
            said = seq.next_index if seq.phase in (Phase.RUNNING, Phase.CLOSING) else 0
            self.ended.append(AnswerSample(request_tag(seq.request), seq.tenant, said))
        if seq.phase is Phase.RESERVED:
            seq.quarantined = True
            seq.deadline_s = now_s + self.limits.quarantine_s
        seq.phase = Phase.ENDING
        if seq.users == 0:
            self._free(seq, now_s)
        return [Ended(seq, error)] if error is not None else []

    def expire(self, now_s: float) -> list[Effect]:
        """Ends what is past its deadline, and takes back blocks whose remote writer never spoke
        again: its own deadlines have stopped it long before."""
        effects: list[Effect] = []
        for seq in list(self._all.values()):
            if now_s >= seq.start_by_s and seq.not_begun:
                waited_s = now_s - seq.queued_at_s
                late = StartedTooLate(
                    f"the prompt waited {waited_s:.2f} s and could not begin in time",
                    retry_after_s=RETRY_LATE_S,
                )
                effects += self.end(seq, late, now_s)
            if now_s < seq.deadline_s:
                continue
            if seq.phase is not Phase.ENDING:
                what = "reservation" if seq.phase is Phase.RESERVED else "request"
                effects += self.end(seq, DeadlineExceeded(f"the {what} ran out of time"), now_s)
            elif seq.quarantined:
                self.writer_stopped(seq, now_s)
        return effects

    # -- steps ------------------------------------------------------------------------------

    def next_batch(self, now_s: float) -> tuple[list[Work], list[Effect]]:
        """Work for one step, and what had to go to make room. All running sequences advance by one
        token; chunks of prompts fill the rest of the step's token budget."""
        effects = self._grow(now_s)
        work = [
            Work(seq, seq.length - 1, 1, samples=seq.phase is Phase.RUNNING)
            for seq in self._all.values()
            if seq.phase in (Phase.RUNNING, Phase.CLOSING)
        ]
        budget = max(self.limits.chunk_tokens - len(work), self.limits.block_tokens)
        decoding = bool(work)
        for seq in self.in_turn(now_s, Phase.PREFILL):
            if decoding and not seq.loaded:
                continue
            count = self._chunk(seq, budget)
            if count == 0:
                break
            last = seq.computed + count == seq.prompt_tokens
            work.append(Work(seq, seq.computed, count, samples=last))
            budget -= count
        for each in work:
            if each.sequence.phase is Phase.PREFILL:
                self._queue.began(each.sequence)
            each.sequence.in_step = True
            self.hold(each.sequence)
            if not each.sequence.started_at_s:
                each.sequence.started_at_s = now_s
        return work, effects

    def complete(self, work: Run[Work], result: StepResult, now_s: float) -> list[Effect]:
        """Takes in a finished step."""
        effects: list[Effect] = []
        for each, sampled in zip(work, result.sampled, strict=True):
            seq = each.sequence
            self._leave_step(seq, now_s)
            if seq.phase in (Phase.ENDING, Phase.DONE):
                continue
            seq.computed = max(seq.computed, each.start + each.count)
            effects += self._publish(seq)
            if seq.phase is Phase.CLOSING:
                effects += self.end(seq, None, now_s)
            elif sampled is not None:
                seq.append(sampled.token)
                finish = self._finish(seq, sampled.token)
                index = seq.next_index - 1
                effects.append(Emit(seq, index, sampled.token, finish, sampled.logprobs))
                effects += self._advance(seq, finish, now_s)
        return effects

    def abort(self, work: Run[Work], now_s: float) -> None:
        """A step failed as a whole and counts for nothing; its sequences may run again."""
        for each in work:
            self._leave_step(each.sequence, now_s)

    # -- views ------------------------------------------------------------------------------

    def in_phase(self, *phases: Phase) -> int:
        return sum(1 for seq in self._all.values() if seq.phase in phases)

    def in_turn(self, now_s: float, *phases: Phase) -> list[Sequence]:
        """Prompts in these phases, the next one first: see `queueing`."""
        waiting = [seq for seq in self._all.values() if seq.phase in phases]
        return self._queue.in_turn(waiting, now_s) if len(waiting) > 1 else waiting

    def decoding(self) -> int:
        """Decode places taken: running, reserved, and prompts that will decode here."""
        phases = (Phase.RESERVED, Phase.RUNNING, Phase.CLOSING)
        here = (Phase.LOADING, Phase.PREFILL)
        return sum(
            1
            for s in self._all.values()
            if s.phase in phases or (s.decodes_here and s.phase in here)
        )

    def sequences(self) -> list[Sequence]:
        return list(self._all.values())

    def tokens_to_compute(self) -> int:
        """Of all prompts that wait or run."""
        waiting = (Phase.QUEUED, Phase.LOADING, Phase.PREFILL)
        return sum(s.prompt_tokens - s.computed for s in self._all.values() if s.phase in waiting)

    def context_tokens(self) -> int:
        return sum(s.length for s in self._all.values() if s.phase is Phase.RUNNING)

    def check(self) -> None:
        """Asserts all invariants."""
        self.pool.check()
        self._queue.check()
        for seq in self._all.values():
            assert seq.phase is not Phase.DONE
            assert seq.computed <= len(seq.blocks) * self.limits.block_tokens
            assert seq.published_blocks <= len(seq.blocks)
            assert not (seq.phase is Phase.QUEUED and seq.blocks)
            assert seq.users >= 0

    # -- inside -----------------------------------------------------------------------------

    def _fits(self, tokens: int) -> None:
        if -(-tokens // self.limits.block_tokens) > self.pool.blocks_total:
            raise CapacityError(
                f"{tokens} tokens never fit into {self.pool.blocks_total} blocks of "
                f"{self.limits.block_tokens}; give the instance a larger MOONPOOL_KV_POOL_BYTES",
                code="kv_space",
                elsewhere=True,
            )

    def _reusable_blocks(self, seq: Sequence) -> int:
        """At least the last token is computed, in a block of our own: its logits are needed."""
        return min(len(seq.keys), (seq.prompt_tokens - 1) // self.limits.block_tokens)

    def _place(self, seq: Sequence, reusable: int, now_s: float) -> bool:
        needed = -(-seq.prompt_tokens // self.limits.block_tokens)
        matched = self.pool.match(seq.keys[:reusable])
        self.pool.acquire(matched, now_s)
        fresh = self.pool.allocate(needed - len(matched), now_s)
        if fresh is None:
            self.pool.release(matched, now_s)
            return False
        seq.blocks = matched + fresh
        seq.matched_blocks = seq.fetched_blocks = seq.published_blocks = len(matched)
        seq.computed = len(matched) * self.limits.block_tokens
        return True

    def _chunk(self, seq: Sequence, budget: int) -> int:
        """Tokens of the next chunk: up to the end of the prompt, or whole blocks."""
        left = seq.prompt_tokens - seq.computed
        if left <= budget:
            return left
        return budget // self.limits.block_tokens * self.limits.block_tokens

    def _grow(self, now_s: float) -> list[Effect]:
        """One more block for each running sequence that needs it; the youngest make room."""
        effects: list[Effect] = []
        for seq in list(self._all.values()):
            while self._wants_block(seq):
                block = self.pool.allocate(1, now_s)
                if block is not None:
                    seq.blocks += block
                    continue
                youngest = [s for s in self._all.values() if s.phase is Phase.RUNNING][-1]
                self.preemptions += 1
                effects += self.end(youngest, Preempted("KV blocks ran out", elsewhere=True), now_s)
        return effects

    def _wants_block(self, seq: Sequence) -> bool:
        full = seq.length > len(seq.blocks) * self.limits.block_tokens
        return seq.phase is Phase.RUNNING and full

    def _leave_step(self, seq: Sequence, now_s: float) -> None:
        seq.in_step = False
        self.unhold(seq, now_s)

    def _free(self, seq: Sequence, now_s: float) -> None:
        self.pool.release(seq.blocks, now_s, BlockHint(run_blocks=len(seq.keys)))
        seq.blocks = []
        seq.phase = Phase.DONE
        del self._all[seq.id]

    def _publish(self, seq: Sequence) -> list[Effect]:
        """Makes newly full blocks findable; those of output also go to the store."""
        effects: list[Effect] = []
        if not seq.loaded:
            return effects
        for i in range(seq.published_blocks, seq.computed // self.limits.block_tokens):
            key, block = seq.key_at(i), seq.blocks[i]
            self.pool.publish(key, block)
            if (i + 1) * self.limits.block_tokens > seq.prompt_tokens:
                self.pool.acquire([block], 0.0)
                effects.append(BlockFilled(seq, key, block))
            seq.published_blocks = i + 1
        return effects

    def _finish(self, seq: Sequence, token: int) -> str:
        params = seq.sampling
        ends = token in self.limits.eos_token_ids and not params.ignore_eos
        if (ends or token in params.stop_token_ids) and seq.next_index > params.min_tokens:
            return "stop"
        if seq.next_index >= params.max_tokens or seq.length >= self.limits.context_tokens:
            return "length"
        return ""

    def _advance(self, seq: Sequence, finish: str, now_s: float) -> list[Effect]:
        """After a sampled token: the next phase."""
        prompt_done = seq.phase is Phase.PREFILL
        if prompt_done and not seq.decodes_here:
            seq.phase = Phase.HANDOVER  # even when finished: blocks stay until the store has them
            return [HandOver(seq, finish)]
        if not finish:
            seq.phase = Phase.RUNNING
            return []
        if (
            seq.length % self.limits.block_tokens == 0
            and len(seq.blocks) * (self.limits.block_tokens) >= seq.length
        ):
            seq.phase = Phase.CLOSING  # the next turn of this chat will want the block it ends in
            return []
        return self.end(seq, None, now_s)
