"""Two outputs for one prompt, token by token. Pure.

Greedy outputs should be equal. In half precision a first difference is let pass only where it is
proven to be none: where the reference's own best logit and that of the token the mesh chose are
closer than the precision resolves, either may win by rounding alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Spacing of representable numbers just above 1.
SPACING_AT_1 = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True, slots=True)
class Position:
    """One token of the reference, and how close its rivals were."""

    token: int
    text: str
    top: Mapping[str, float]  # likeliest tokens' texts -> log-probability
    logits: Mapping[str, float]  # the same tokens' logits
    best_logit: float


@dataclass(frozen=True, slots=True)
class Output:
    """What the mesh answered; `tokens` is empty when the gateway does not tell ids."""

    texts: Sequence[str]  # one per token
    logprobs: Sequence[float]  # of the chosen tokens
    top: Sequence[Mapping[str, float]]  # likeliest tokens' texts -> log-probability
    tokens: Sequence[int] = ()
    cached_tokens: int = 0


@dataclass(slots=True)
class Verdict:
    """How the outputs compare up to and including the first difference."""

    prompt: str
    run: str  # cold, cached, together
    compared: int = 0
    first_difference: int = -1  # position; -1: none
    gap: float = 0.0  # reference's best logit minus that of the mesh's token, there
    resolvable: float = 0.0  # the smallest gap that the precision resolves there
    logprob_difference_max: float = 0.0
    cached_tokens: int = 0
    texts: tuple[str, str] = field(default=("", ""))  # (reference, mesh) at the difference

    @property
    def equal(self) -> bool:
        return self.first_difference < 0

    @property
    def near_tie(self) -> bool:
        return not self.equal and self.resolvable > 0 and self.gap <= self.resolvable

    @property
    def ok(self) -> bool:
        return self.equal or self.near_tie


def resolvable_gap(logit: float, dtype: str) -> float:
    """Distance from `logit` to the next number of that type; 0 in full precision, where equal
    arithmetic has to give equal tokens."""
    if dtype == "float32" or logit == 0:
        return 0.0
    return float(SPACING_AT_1[dtype] * 2.0 ** math.floor(math.log2(abs(logit))))


def compare(
    prompt: str, run: str, reference: Sequence[Position], mesh: Output, dtype: str
) -> Verdict:
    """The verdict on one prompt. `dtype`: what both sides computed in."""
    verdict = Verdict(prompt, run, cached_tokens=mesh.cached_tokens)
    for at, position in enumerate(reference):
        if at >= len(mesh.texts):
            verdict.first_difference, verdict.gap = at, math.inf
            verdict.texts = (position.text, "")
            return verdict
        verdict.compared = at + 1
        drift = _logprob_difference(position, mesh, at)
        verdict.logprob_difference_max = max(verdict.logprob_difference_max, drift)
        if not _same_token(position, mesh, at):
            rival = mesh.texts[at]
            known = rival != position.text  # two tokens of one text can't be told apart here
            logit = position.logits.get(rival, -math.inf) if known else -math.inf
            verdict.first_difference = at
            verdict.gap = position.best_logit - logit
            verdict.resolvable = resolvable_gap(position.best_logit, dtype)
            verdict.texts = (position.text, mesh.texts[at])
            return verdict
    return verdict


def _same_token(position: Position, mesh: Output, at: int) -> bool:
    if mesh.tokens:
        return mesh.tokens[at] == position.token
    return mesh.texts[at] == position.text


def _logprob_difference(position: Position, mesh: Output, at: int) -> float:
    """Largest difference over the tokens that both sides list; not over parts of characters, which
    all have the same text."""
    both = set(position.top) & set(mesh.top[at]) if at < len(mesh.top) else set()
    both = {text for text in both if "\ufffd" not in text}
    return max((abs(position.top[t] - mesh.top[at][t]) for t in both), default=0.0)
