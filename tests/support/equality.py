"""When may an answer in 16 bits differ from the reference's? Only at a tie, proven on the spot.

Two computations of the same model in bfloat16 round differently, so where the two likeliest tokens
have logits that bfloat16 can hardly tell apart, either is right. After such a place the two texts
are different prompts and nothing more can be compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.support.reference import Reference

# Each of two logits is the end of a long sum of rounded terms: bfloat16 resolves their order down
# to about this many of its steps.
STEPS_RESOLVED = 2.0


@dataclass(frozen=True)
class Difference:
    """The first place where an answer differs from the reference's."""

    index: int
    expected: int
    got: int
    gap: float  # between the reference's logits of the two tokens
    step: float  # of bfloat16 at the size of the larger
    rank: int  # of our token in the reference; 1: its second choice

    @property
    def is_tie(self) -> bool:
        return self.rank <= 1 and self.gap <= STEPS_RESOLVED * self.step


def first_difference(
    reference: Reference, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int]
) -> Difference | None:
    """Looks at the reference's own logits where the two answers part; None when they do not."""
    pairs = zip(expected, got, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if index is None:
        return None
    ids = torch.tensor([[*prompt, *expected[:index]]])
    with torch.inference_mode():
        logits = reference.model(ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    want, ours = float(logits[expected[index]]), float(logits[got[index]])
    high = max(abs(want), abs(ours), 2.0**-126)
    return Difference(
        index=index,
        expected=expected[index],
        got=got[index],
        gap=abs(want - ours),
        step=2.0 ** (math.floor(math.log2(high)) - 7),
        rank=int((logits > ours).sum()),
    )


def assert_equal_up_to_ties(
    reference: Reference,
    prompt: Sequence[int],
    expected: Sequence[int],
    got: Sequence[int],
    what: str,
) -> Difference | None:
    """Fails unless the answers are equal, or part at a tie. Returns that tie."""
    difference = first_difference(reference, prompt, expected, got)
    if difference is None:
        assert len(expected) == len(got), f"{what}: {len(got)} tokens, not {len(expected)}"
        return None
    assert difference.is_tie, f"{what}: {difference}"
    return difference
