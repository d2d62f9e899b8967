"""What came of each request, and of the mesh over time."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Outcome:
    """One request. NaN: it never got there."""

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    prefill: str = ""
    decode: str = ""
    refused: str = ""  # a code: before any work
    wasted: str = ""  # a code: after the prefill
    reused_tokens: int = 0
    fetched_tokens: int = 0
    queue_s: float = math.nan
    compute_s: float = math.nan
    ttft_s: float = math.nan
    predicted_ttft_s: float = math.nan
    tbt_s: float = math.nan  # mean of its slowest tenth
    ended_s: float = math.nan

    @property
    def accepted(self) -> bool:
        return not self.refused and not self.wasted


@dataclass(slots=True)
class Sample:
    """The mesh at one moment."""

    at_s: float
    prefill_queue_s: list[float]  # per prefill: seconds of work waiting or running
    decode_step_s: list[float]  # per decode
    decode_batch: list[int]


@dataclass(slots=True)
class Result:
    """One run."""

    policy: str
    admission: str
    prefills: int
    decodes: int
    seed: int
    speed: float
    slo_ttft_s: float
    slo_tbt_s: float
    outcomes: list[Outcome]
    samples: list[Sample]
    busy_s: dict[str, float]  # per prefill: computing
    replicas_of_hot: float  # mean holders of the hundred most used blocks
    moved_bytes: float
    wall_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> list[Outcome]:
        return [o for o in self.outcomes if not math.isnan(o.ttft_s)]

    @property
    def accepted(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.accepted]

    @property
    def span_s(self) -> float:
        return max((o.arrived_s for o in self.outcomes), default=0.0)

    def summary(self) -> dict[str, float | int | str]:
        """The figures of the run; seconds unless named otherwise."""
        ended, accepted = self.ended, self.accepted
        ttfts = sorted(o.ttft_s for o in ended)
        tbts = sorted(o.tbt_s for o in accepted if not math.isnan(o.tbt_s))
        tokens = sum(o.prompt_tokens for o in ended)
        met = sum(self.met(o) for o in accepted)
        errors = sorted(abs(o.predicted_ttft_s - o.ttft_s) / max(o.ttft_s, 1e-3) for o in ended)
        return {
            "policy": self.policy,
            "admission": self.admission,
            "prefills": self.prefills,
            "decodes": self.decodes,
            "requests": len(self.outcomes),
            "ttft_mean_s": _round(mean(ttfts)),
            "ttft_p50_s": _round(quantile(ttfts, 0.5)),
            "ttft_p90_s": _round(quantile(ttfts, 0.9)),
            "ttft_p99_s": _round(quantile(ttfts, 0.99)),
            "tbt_mean_s": _round(mean(tbts)),
            "tbt_p90_s": _round(quantile(tbts, 0.9)),
            "token_hit_rate": _round(sum(o.reused_tokens for o in ended) / max(1, tokens)),
            "fetched_share": _round(sum(o.fetched_tokens for o in ended) / max(1, tokens)),
            "compute_mean_s": _round(mean([o.compute_s for o in ended])),
            "prefill_busy_share": _round(
                sum(self.busy_s.values()) / max(1e-9, self.prefills * self.span_s)
            ),
            "rejected": len(self.outcomes) - len(accepted),
            "rejected_early": sum(bool(o.refused) for o in self.outcomes),
            "rejected_after_prefill": sum(bool(o.wasted) for o in self.outcomes),
            "slo_met_share_of_accepted": _round(met / max(1, len(accepted))),
            "goodput_per_s": _round(met / max(1e-9, self.span_s)),
            "ttft_prediction_error_p50": _round(quantile(errors, 0.5)),
            "ttft_prediction_error_p90": _round(quantile(errors, 0.9)),
            "hot_block_replicas": _round(self.replicas_of_hot),
            "moved_gb": round(self.moved_bytes / 1e9, 1),
            **self.swing(),
            "wall_s": round(self.wall_s, 2),
        }

    def met(self, outcome: Outcome) -> bool:
        """Whether both promises were kept."""
        in_time = outcome.ttft_s <= self.slo_ttft_s
        return in_time and not outcome.tbt_s > self.slo_tbt_s

    def swing(self) -> dict[str, float]:
        """How much the pools' loads swing: deviation over time, and how opposed they are."""
        prefill, decode = self.loads()
        if len(prefill) < 3:
            return {}
        return {
            "prefill_load_deviation": _round(deviation(prefill)),
            "decode_load_deviation": _round(deviation(decode)),
            "load_correlation": _round(correlation(prefill, decode)),
        }

    def loads(self) -> tuple[list[float], list[float]]:
        """(prefill, decode) load over time: of the pool, 1.0 is what the promises allow."""
        counted = [sample for sample in self.samples if sample.at_s <= self.span_s]
        prefill = [mean(sample.prefill_queue_s) / self.slo_ttft_s for sample in counted]
        decode = [mean(sample.decode_step_s) / self.slo_tbt_s for sample in counted]
        return prefill, decode


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order; 0 <= share <= 1."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def deviation(values: Sequence[float]) -> float:
    middle = mean(values)
    return math.sqrt(mean([(value - middle) ** 2 for value in values]))


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """-1..1; 0 when either never changes."""
    a, b = mean(ours), mean(theirs)
    spread = deviation(ours) * deviation(theirs)
    if spread < 1e-12:
        return 0.0
    return mean([(x - a) * (y - b) for x, y in zip(ours, theirs, strict=True)]) / spread


def bucketed(
    values: Iterable[tuple[float, float]], every_s: float, count: int, gather: Callable[..., float]
) -> list[float]:
    """(time, value) pairs gathered by stretches of time; 0 where there is none."""
    buckets: list[list[float]] = [[] for _ in range(count)]
    for at_s, value in values:
        index = int(at_s / every_s)
        if 0 <= index < count:
            buckets[index].append(value)
    return [gather(bucket) if bucket else 0.0 for bucket in buckets]


def _round(value: float) -> float:
    return round(value, 5)
