"""Lengths of answers, learned from those that ended: how likely is one to be longer than n tokens?

Lengths are counted in bins of a quarter of a doubling, per tenant and over all; old ones fade. A
tenant with few answers leans on everybody's. How long answers are also depends on how long prompts
are: long documents tend to be asked short questions. That is learned per doubling of the prompt.
"""

import math
from collections import OrderedDict

_BINS = 80
_PER_DOUBLING = 4
_FADE_AT = 4096.0  # answers counted; then all counts are halved
_LEAN = 20.0  # everybody's answers weigh as much as so many of the tenant's own
_TENANTS_MAX = 1024
_PRIOR_MEDIAN = 256.0  # until the first answer ended
_RENEWED_EVERY = 16
_PROMPT_BINS = 32


class AnswerLengths:
    """One survival curve per tenant."""

    def __init__(self) -> None:
        self._all = _Counts()
        self._tenants: OrderedDict[str, _Counts] = OrderedDict()
        self._by_prompt = [(0.0, 0.0)] * _PROMPT_BINS  # answers, and their tokens

    def learn(self, tenant: str, tokens: int, prompt_tokens: int = 0) -> None:
        """An answer of `tokens` ended; to a prompt of so many, where that is known."""
        self._all.add(tokens)
        if prompt_tokens:
            at = _prompt_bin(prompt_tokens)
            count, total = self._by_prompt[at]
            fade = 0.5 if count >= _FADE_AT / 8 else 1.0
            self._by_prompt[at] = (fade * count + 1.0, fade * total + tokens)
        counts = self._tenants.get(tenant)
        if counts is None:
            if len(self._tenants) >= _TENANTS_MAX:
                self._tenants.popitem(last=False)
            counts = self._tenants[tenant] = _Counts()
        else:
            self._tenants.move_to_end(tenant)
        counts.add(tokens)

    def longer_than(self, tenant: str, tokens: float) -> float:
        """Share of the tenant's answers that are longer; falls with `tokens`, > 0."""
        counts = self._tenants.get(tenant)
        everybody = self._all.longer_than(tokens)
        if counts is None or counts is self._all:
            return everybody
        own = counts.total
        return (own * counts.longer_than(tokens) + _LEAN * everybody) / (own + _LEAN)

    def mean_tokens(self) -> float:
        """Over everybody's answers."""
        return self._all.mean()

    def relative(self, prompt_tokens: int) -> float:
        """How long answers to such prompts are, in mean answers; 1.0 until it is known."""
        count, total = self._by_prompt[_prompt_bin(prompt_tokens)]
        mean = self._all.mean()
        return (total + _LEAN * mean) / ((count + _LEAN) * max(1e-9, mean))

    def stats(self) -> dict[str, int]:
        return {"answers_seen": self._all.seen, "answer_tenants": len(self._tenants)}


class _Counts:
    """A histogram of lengths and its survival curve."""

    def __init__(self) -> None:
        self.total = 0.0
        self.seen = 0
        self._sum = 0.0
        self._bins = [0.0] * _BINS
        self._curve: list[float] = []  # at the start of each bin
        self._stale = 0

    def add(self, tokens: int) -> None:
        self._bins[int(_place(tokens))] += 1.0
        self.total += 1.0
        self._sum += tokens
        self.seen += 1
        self._stale += 1
        if self.total > _FADE_AT:
            self._bins = [count * 0.5 for count in self._bins]
            self.total *= 0.5
            self._sum *= 0.5

    def mean(self) -> float:
        return self._sum / self.total if self.total else _PRIOR_MEDIAN

    def longer_than(self, tokens: float) -> float:
        if not self.total:
            return math.exp2(-tokens / _PRIOR_MEDIAN)
        if not self._curve or self._stale >= min(_RENEWED_EVERY, self.seen // 4 + 1):
            self._renew()
        at = _place(tokens)
        low = int(at)
        here = self._curve[low]
        return here + (at - low) * (self._curve[low + 1] - here)

    def _renew(self) -> None:
        """The tail beyond what was seen keeps a little of everything."""
        self._stale = 0
        whole = self.total + 1.0
        above, curve = 1e-3 / whole, [1e-3 / whole]
        for count in reversed(self._bins):
            above += (count + 1.0 / _BINS) / whole
            curve.append(min(1.0, above))
        self._curve = curve[::-1]


def _prompt_bin(tokens: int) -> int:
    return min(_PROMPT_BINS - 1, max(0, tokens).bit_length())


def _place(tokens: float) -> float:
    """Where a length lies among the bins."""
    return min(_BINS - 1e-6, _PER_DOUBLING * math.log2(1.0 + max(0.0, tokens)))
