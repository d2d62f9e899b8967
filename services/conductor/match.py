"""What the index knows about one prompt: who holds its leading blocks.

A match is a step function: segments, back to back from block 0, each with the set of places that
hold it. Chains are prefix-closed (who computed block 5 had blocks 0 to 4), so few steps tell
all, and they are found by search. Evictions make exceptions; `BlockIndex.confirm` finds those.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.conductor.places import bits_of


class Segment(NamedTuple):
    """Blocks `[start, end)` of the prompt, all held by every place of `mask`."""

    start: int
    end: int
    mask: int  # != 0


@dataclass(slots=True)
class Match:
    """`segments` lie back to back from 0; after the last nobody usable holds the next block."""

    blocks: int  # full blocks of the prompt
    segments: list[Segment] = field(default_factory=list)
    exact: bool = False  # every block was looked up
    _lengths: dict[int, int] | None = None

    @property
    def end(self) -> int:
        """Blocks `[0, end)` are each held by somebody."""
        return self.segments[-1].end if self.segments else 0

    def lengths(self) -> dict[int, int]:
        """Bit -> leading blocks `[0, length)` that this place holds without a hole; no zeroes."""
        lengths = self._lengths
        if lengths is None:
            lengths = self._lengths = {}
            alive = self.segments[0].mask if self.segments else 0
            for segment in self.segments[1:]:
                for bit in bits_of(alive & ~segment.mask):
                    lengths[bit] = segment.start
                alive &= segment.mask
            for bit in bits_of(alive):
                lengths[bit] = self.end
        return lengths

    def check(self) -> None:
        """Segments are back to back, not empty, and within the prompt."""
        at = 0
        for segment in self.segments:
            assert segment.start == at < segment.end <= self.blocks, "back to back"
            assert segment.mask, "somebody holds it"
            at = segment.end
