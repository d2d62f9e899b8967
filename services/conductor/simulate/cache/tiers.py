"""Two tiers, a filter between them, one trace: what does the filter save in writes, and what does
it cost in hits?"""

from collections import OrderedDict
from dataclasses import dataclass

from moonpool.cache import AdmissionFilter
from services.conductor.simulate.cache.trace import BLOCK_TOKENS, Request


@dataclass(slots=True)
class TierTally:
    tokens: int = 0  # of prompts
    tokens_hit: int = 0
    tokens_hit_below: int = 0  # of those
    tokens_written: int = 0  # to the lower tier

    @property
    def hit_rate(self) -> float:
        return self.tokens_hit / self.tokens if self.tokens else 0.0

    @property
    def written_share(self) -> float:
        """Tokens written below per token asked for."""
        return self.tokens_written / self.tokens if self.tokens else 0.0

    @property
    def hits_per_write(self) -> float:
        """Tokens read back from below per token written there."""
        return self.tokens_hit_below / self.tokens_written if self.tokens_written else 0.0


class TwoTiers:
    """As a node has them: LRU in both, uses count wherever a block lies, what is hit below comes up
    and its copy stays, and whoever must leave the upper tier is written below if it is not there
    yet and the filter admits it."""

    def __init__(self, admission: AdmissionFilter, upper_blocks: int, lower_blocks: int) -> None:
        self._admission = admission
        self._upper_blocks = upper_blocks
        self._lower_blocks = lower_blocks
        self._upper: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._lower: OrderedDict[int, None] = OrderedDict()
        self.tally = TierTally()

    def ask(self, request: Request) -> None:
        """One prompt; it hits with its leading run of blocks that lie in either tier."""
        self._count(request)
        upper, lower, now_s = self._upper, self._lower, request.arrived_s
        for block in reversed(request.blocks):  # a prompt's head outlives its tail
            self._admission.used(block, now_s)
            if block in lower:
                lower.move_to_end(block)
            upper[block] = None
            upper.move_to_end(block)
        while len(upper) > self._upper_blocks:
            victim, _ = upper.popitem(last=False)
            if victim not in lower and self._admission.admits(victim, now_s):
                lower[victim] = None
                self.tally.tokens_written += BLOCK_TOKENS
                if len(lower) > self._lower_blocks:
                    lower.popitem(last=False)

    def _count(self, request: Request) -> None:
        hits = hits_below = 0
        for block in request.blocks:
            if block not in self._upper:
                if block not in self._lower:
                    break
                hits_below += 1
            hits += 1
        tally = self.tally
        tokens_hit = min(hits * BLOCK_TOKENS, request.input_tokens)
        tally.tokens += request.input_tokens
        tally.tokens_hit += tokens_hit
        tally.tokens_hit_below += min(hits_below * BLOCK_TOKENS, tokens_hit)
