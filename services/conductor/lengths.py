"""Lengths of answers, learned from those that ended: how likely is one to be longer than n tokens?

Lengths are counted in bins of a quarter of a doubling, per tenant and over all; old ones fade. A
tenant with few answers leans on everybody's. How long answers are also depends on how long prompts
are: long documents tend to be asked short questions. That is learned per doubling of the prompt.

Of answers that began together the short ones end first. Those that still run count as well, as
longer than they are so far: else a mesh that just began would take all answers to be short. Where
nothing was seen yet, answers go on as the prior says (a survival curve after Kaplan and Meier).
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain, pairwise

_BINS = 80
_PER_DOUBLING = 4
_FADE_AT = 4096.0  # answers counted; then all counts are halved
_LEAN = 20.0  # everybody's answers weigh as much as so many of the tenant's own
_TENANTS_MAX = 1024
_PRIOR_MEDIAN = 256.0  # until the first answer ended
_PRIOR_WEIGHT = 2.0  # answers, in each bin
_RENEWED_EVERY = 16
_PROMPT_BINS = 32


class AnswerLengths:
    """One survival curve per tenant."""

    def __init__(self) -> None:
        self._all = _Counts()
        self._tenants: OrderedDict[str, _Counts] = OrderedDict()
        self._by_prompt = [(0.0, 0.0)] * _PROMPT_BINS  # answers, and their tokens
        self._renewed_at = 0  # answers seen when those that run were told last
        self._running: dict[str, list[float]] = {}  # tenant -> tokens so far, as told last
        self._version = 0  # curves of an older one are worked out anew when they are asked for

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

    @property
    def is_stale(self) -> bool:
        """Whether enough ended since `still_running` was told."""
        seen = self._all.seen
        return seen - self._renewed_at >= min(_RENEWED_EVERY, self._renewed_at // 4 + 1)

    def still_running(self, ages: Iterable[tuple[str, float]]) -> None:
        """(tenant, tokens so far) of all answers that have not ended, in place of those told
        before."""
        self._renewed_at = self._all.seen
        self._version += 1
        self._running = {}
        for tenant, tokens in ages:
            self._running.setdefault(tenant, []).append(tokens)
        self._all.renew(chain.from_iterable(self._running.values()))
        self._all.version = self._version

    def longer_than(self, tenant: str, tokens: float) -> float:
        """Share of the tenant's answers that are longer; falls with `tokens`, > 0."""
        counts = self._tenants.get(tenant, self._all)
        if counts.version != self._version:
            counts.renew(self._running.get(tenant, ()))
            counts.lean_on(self._all)
            counts.version = self._version
        return counts.longer_than(tokens)

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
        self.version = 0
        self._sum = 0.0
        self._bins = [0.0] * _BINS
        self._curve = list(_PRIOR_CURVE)  # at the start of each bin

    def add(self, tokens: int) -> None:
        self._bins[int(_place(tokens))] += 1.0
        self.total += 1.0
        self._sum += tokens
        self.seen += 1
        if self.total > _FADE_AT:
            self._bins = [count * 0.5 for count in self._bins]
            self.total *= 0.5
            self._sum *= 0.5

    def mean(self) -> float:
        return self._sum / self.total if self.total else _PRIOR_MEDIAN

    def longer_than(self, tokens: float) -> float:
        at = _place(tokens)
        low = int(at)
        here = self._curve[low]
        return here + (at - low) * (self._curve[low + 1] - here)

    def renew(self, running: Iterable[float]) -> None:
        """The curve anew. `running`: tokens so far of answers that go on."""
        going = [0.0] * _BINS
        for tokens in running:
            going[int(_place(tokens))] += 1.0
        left = self.total + sum(going)  # that reached the bin
        there, curve = 1.0, [1.0]
        for ended, paused, stays in zip(self._bins, going, _PRIOR_STAYS, strict=True):
            weight = left - 0.5 * paused + _PRIOR_WEIGHT
            there *= max(0.0, 1.0 - (ended + _PRIOR_WEIGHT * (1.0 - stays)) / weight)
            curve.append(max(_TINY, there))
            left -= ended + paused
        self._curve = curve

    def lean_on(self, all: "_Counts") -> None:
        """Few answers of its own say little: everybody's count as so many more."""
        own = self.total
        self._curve = [
            (own * mine + _LEAN * theirs) / (own + _LEAN)
            for mine, theirs in zip(self._curve, all._curve, strict=True)
        ]


def _prompt_bin(tokens: int) -> int:
    return min(_PROMPT_BINS - 1, max(0, tokens).bit_length())


def _place(tokens: float) -> float:
    """Where a length lies among the bins."""
    return min(_BINS - 1e-6, _PER_DOUBLING * math.log2(1.0 + max(0.0, tokens)))


def _longer_by_prior(tokens: float) -> float:
    return max(_TINY, math.exp2(-tokens / _PRIOR_MEDIAN))


_TINY = 1e-9
_PRIOR_CURVE = [_longer_by_prior(math.exp2(at / _PER_DOUBLING) - 1.0) for at in range(_BINS + 1)]
_PRIOR_STAYS = [after / before for before, after in pairwise(_PRIOR_CURVE)]
