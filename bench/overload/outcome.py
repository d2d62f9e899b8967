"""What became of the requests of one window. Pure."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.overload.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class Promise:
    """The service level that a request counts under."""

    ttft_s: float
    tbt_s: float  # mean time between the tokens of an answer


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: refused with `refused`, broken off with `failed`, or answered."""

    ttft_s: float = 0.0
    tbt_s: float = 0.0
    refused: str = ""  # the reason that came with 429
    failed: str = ""

    @property
    def answered(self) -> bool:
        return not self.refused and not self.failed

    def keeps(self, promise: Promise) -> bool:
        on_time = self.ttft_s <= promise.ttft_s and self.tbt_s <= promise.tbt_s
        return self.answered and on_time


@dataclass(frozen=True, slots=True)
class Outcome:
    requests: int
    goodput_per_s: float  # requests that kept both promises, per second of the window
    refused: int
    failed: int  # broken off by us when their promise was long past, or by an error
    kept_of_answered: float  # share; failed ones count as answered late
    ttft_s_p50: float
    ttft_s_p90: float
    tbt_s_p90: float
    reasons: dict[str, int]

    def as_json(self) -> dict[str, object]:
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def settled(
    arrivals: Sequence[Arrival], answers: Sequence[Answer], settle_s: float
) -> list[Answer]:
    """Answers to those who came after `settle_s`, when queues are as long as they get. Before, a
    mesh takes on more than it can do, and would look as if it could do more."""
    return [
        answer
        for arrival, answer in zip(arrivals, answers, strict=True)
        if arrival.at_s >= settle_s
    ]


def ratio_noise(parts: Sequence[float], whole: float) -> float:
    """Standard error of the mean of `parts`, over `whole`."""
    if len(parts) < 2 or not whole:
        return 0.0
    return statistics.stdev(parts) / math.sqrt(len(parts)) / whole


def outcome(answers: Sequence[Answer], window_s: float, promise: Promise) -> Outcome:
    refused = [a for a in answers if a.refused]
    failed = [a for a in answers if a.failed]
    answered = [a for a in answers if a.answered]
    kept = sum(a.keeps(promise) for a in answers)
    return Outcome(
        requests=len(answers),
        goodput_per_s=kept / window_s,
        refused=len(refused),
        failed=len(failed),
        kept_of_answered=kept / max(1, len(answers) - len(refused)),
        ttft_s_p50=_quantile([a.ttft_s for a in answered], 0.5),
        ttft_s_p90=_quantile([a.ttft_s for a in answered], 0.9),
        tbt_s_p90=_quantile([a.tbt_s for a in answered], 0.9),
        reasons=dict(Counter(a.refused or a.failed for a in answers if not a.answered)),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    if not values:
        return 0.0
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
