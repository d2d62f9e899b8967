"""One cache, one policy, one trace: how many prompt tokens were there already?"""

from dataclasses import dataclass

from moonpool.cache import BlockHint, EvictionPolicy
from services.conductor.simulate.cache.trace import BLOCK_TOKENS, Request


@dataclass(slots=True)
class Tally:
    tokens: int = 0  # of prompts
    tokens_hit: int = 0
    blocks: int = 0
    blocks_missed: int = 0
    evictions: int = 0

    @property
    def token_hit_rate(self) -> float:
        return self.tokens_hit / self.tokens if self.tokens else 0.0


class Replay:
    """A cache of `blocks_max` whole blocks. A prompt hits with its leading run of blocks that are
    there; then all of its blocks are there, and room is made. `full_blocks_only`: all but a block
    in which the prompt ends."""

    def __init__(
        self, policy: EvictionPolicy[int], blocks_max: int, full_blocks_only: bool = False
    ) -> None:
        self._policy = policy
        self._blocks_max = blocks_max
        self._full_blocks_only = full_blocks_only
        self._here: set[int] = set()
        self.tally = Tally()

    def ask(self, request: Request) -> None:
        """One prompt."""
        blocks, here, policy, now_s = request.blocks, self._here, self._policy, request.arrived_s
        hits = 0
        for block in blocks:
            if block not in here:
                break
            hits += 1
        self._count(request, hits)
        hint = BlockHint(run_blocks=len(blocks))
        old = [block for block in blocks if block in here]
        if len(old) < len(blocks):
            self._enter(request, hint)
        policy.touch(old, now_s, hint)
        while len(here) > self._blocks_max:
            victim = policy.victim(now_s)
            assert victim is not None, "a cache with too many blocks has a victim"
            policy.remove(victim)
            here.remove(victim)
            self.tally.evictions += 1

    def _enter(self, request: Request, hint: BlockHint) -> None:
        """Adds what was not there, the tail first: a prompt's head outlives it."""
        blocks, here, policy = request.blocks, self._here, self._policy
        last = len(blocks) - 1
        for at in range(last, -1, -1):
            block = blocks[at]
            if block in here:
                continue
            ends = at == last and request.ends_inside
            if ends and self._full_blocks_only:
                continue
            here.add(block)
            if ends:
                tail = BlockHint(run_blocks=len(blocks), partial=True)
                policy.insert(block, BLOCK_TOKENS, request.arrived_s, tail)
            else:
                policy.insert(block, BLOCK_TOKENS, request.arrived_s, hint)

    def _count(self, request: Request, hits: int) -> None:
        tally = self.tally
        tally.tokens += request.input_tokens
        tally.tokens_hit += min(hits * BLOCK_TOKENS, request.input_tokens)
        tally.blocks += len(request.blocks)
        tally.blocks_missed += len(request.blocks) - hits
