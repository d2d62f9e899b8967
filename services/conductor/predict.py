"""Predictors of compute: seconds of a prefill and seconds of a decode step, learned on-line.

One model per kind (fingerprint and role) says how time grows; one ratio per instance says how fast
that machine is. Beyond what was seen the answer at the edge is carried on by the prior's shape, and
`trusted` says so: nothing is refused because of a guess.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.conductor.regression import ErrorTrack, RelativeLeastSquares

Features = Callable[[float, float], tuple[float, float, float]]

_RATIO_STEP_MIN = 0.05  # weight of one more sample in an instance's own ratio
_RATIO_MAX = 50.0
_TRUST_BEYOND = 2.0  # times the largest input seen
_TRUST_SAMPLES = 3  # fewer say nothing
_INSTANCES_MAX = 8192
_KINDS_MAX = 1024

# seconds per prompt, per token, per token pair of attention; a small CPU-bound model. A few samples
# replace the scale, so only the proportions matter for long.
PREFILL_PRIOR = (2e-2, 4e-4, 4e-8)
# seconds per step, per sequence, per token of context
STEP_PRIOR = (1e-2, 2e-3, 5e-7)


def prefill_features(new_tokens: float, cached_tokens: float) -> tuple[float, float, float]:
    """A constant, the linear part, and causal attention of the new tokens over all before them."""
    return (1.0, new_tokens, new_tokens * (new_tokens + 2.0 * cached_tokens))


def step_features(sequences: float, context_tokens: float) -> tuple[float, float, float]:
    return (1.0, sequences, context_tokens)


@dataclass(slots=True)
class _Kind:
    """What is known of one kind of machine's work."""

    fit: RelativeLeastSquares
    seen_max: list[float] = field(default_factory=lambda: [0.0, 0.0])
    seen_min: list[float] = field(default_factory=lambda: [math.inf, math.inf])


@dataclass(slots=True)
class _Speed:
    """How one instance compares to its kind."""

    log_ratio: float = 0.0
    samples: int = 0
    last_s: float = -math.inf


class ComputePredictor:
    """Seconds of one sort of work, by kind of machine and instance."""

    def __init__(self, name: str, features: Features, prior: Sequence[float]) -> None:
        self.name = name
        self.errors = ErrorTrack()
        self._features = features
        self._prior = tuple(prior)
        self._kinds: dict[str, _Kind] = {}
        self._speeds: dict[str, _Speed] = {}

    def seconds(self, kind: str, instance: str, first: float, second: float) -> float:
        """Predicted seconds for the two inputs (tokens new and cached; sequences and context)."""
        return self.base(kind, first, second) * self.ratio(instance)

    def base(self, kind: str, first: float, second: float) -> float:
        """As `seconds`, for the typical instance of the kind."""
        known = self._kinds.get(kind)
        features = self._features(first, second)
        if known is None or not known.fit.samples:
            return self._by_prior(features)
        at = self._features(
            min(max(first, known.seen_min[0]), known.seen_max[0]),
            min(max(second, known.seen_min[1]), known.seen_max[1]),
        )
        seconds = known.fit.predict(at)
        if at != features:
            seconds *= self._by_prior(features) / self._by_prior(at)
        return seconds

    def ratio(self, instance: str) -> float:
        """How much slower than its kind the instance is; 1.0 while unknown."""
        speed = self._speeds.get(instance)
        return math.exp(speed.log_ratio) if speed else 1.0

    def trusted(self, kind: str, first: float, second: float) -> bool:
        """Whether the answer rests on samples not far from these inputs."""
        known = self._kinds.get(kind)
        if known is None or known.fit.samples < _TRUST_SAMPLES:
            return False
        return first <= _TRUST_BEYOND * known.seen_max[0] and second <= _TRUST_BEYOND * max(
            known.seen_max[1], known.seen_max[0]
        )

    def last_sample_s(self, instance: str) -> float:
        """When the instance last said how long its work took; minus infinity: never."""
        speed = self._speeds.get(instance)
        return speed.last_s if speed else -math.inf

    def learn(
        self, kind: str, instance: str, first: float, second: float, seconds: float, now_s: float
    ) -> None:
        """What really happened. Impossible values are ignored."""
        if not 0.0 < seconds < math.inf or first < 0 or second < 0:
            return
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= _KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            known = self._kinds[kind] = _Kind(RelativeLeastSquares(self._prior))
        if known.fit.samples:
            self.errors.note(self.seconds(kind, instance, first, second), seconds)
        ratio = self.ratio(instance)
        for axis, value in enumerate((first, second)):
            known.seen_max[axis] = max(known.seen_max[axis], value)
            known.seen_min[axis] = min(known.seen_min[axis], value)
        features = self._features(first, second)
        known.fit.learn(features, seconds / ratio)
        self._learn_ratio(instance, seconds / known.fit.predict(features), now_s)

    def _learn_ratio(self, instance: str, ratio: float, now_s: float) -> None:
        speed = self._speeds.get(instance)
        if speed is None:
            if len(self._speeds) >= _INSTANCES_MAX:
                del self._speeds[next(iter(self._speeds))]
            speed = self._speeds[instance] = _Speed()
        speed.samples += 1
        speed.last_s = now_s
        step = max(_RATIO_STEP_MIN, 1.0 / (4.0 + speed.samples))
        bounded = min(max(ratio, 1.0 / _RATIO_MAX), _RATIO_MAX)
        speed.log_ratio += step * (math.log(bounded) - speed.log_ratio)

    def forget(self, instance: str) -> None:
        """The instance left; its successor starts without an opinion."""
        self._speeds.pop(instance, None)

    def stats(self) -> dict[str, int]:
        return {"kinds": len(self._kinds), "instances": len(self._speeds)}

    def _by_prior(self, features: tuple[float, float, float]) -> float:
        a, b, c = self._prior
        return a * features[0] + b * features[1] + c * features[2]

    def check(self) -> None:
        for kind in self._kinds.values():
            kind.fit.check()
        bound = math.log(_RATIO_MAX) + 1e-9
        assert all(abs(s.log_ratio) <= bound for s in self._speeds.values()), "ratios are bounded"
