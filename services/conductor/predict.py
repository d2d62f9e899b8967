"""Predictors of seconds of work (a prefill, a decode step, a transfer), learned on-line.

One model per kind says how time grows with the size of the work; one ratio per actor (an instance,
a pair of them) says how fast that one is. Beyond what was seen the answer at the edge is carried on
by the prior's shape, and `trusted` says so: nothing is refused because of a guess.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.conductor.regression import ErrorTrack, RelativeLeastSquares

Features = Callable[[float, float], tuple[float, ...]]

_RATIO_STEP_MIN = 0.05  # weight of one more sample in an actor's own ratio
_RATIO_MAX = 1000.0
_RATIO_SAMPLES = 24  # of a kind, before its actors are told apart
_RATIO_DOUBT = 2.0  # samples at which an actor's own ratio counts half
_TRUST_BEYOND = 2.0  # times the largest input seen
_TRUST_SAMPLES = 3  # fewer say nothing
_ACTORS_MAX = 65536
_KINDS_MAX = 1024

# seconds per prompt, per token, per token pair of attention, per cached token; a small CPU-bound
# model. A few samples replace the scale, so only the proportions matter for long.
PREFILL_PRIOR = (2e-2, 4e-4, 4e-8, 2e-6)
# seconds per step, per sequence, per token of context
STEP_PRIOR = (1e-2, 2e-3, 5e-7)


def prefill_features(new_tokens: float, cached_tokens: float) -> tuple[float, ...]:
    """A constant, the linear part, causal attention of the new tokens over all before them, and
    bringing in what was cached."""
    return (1.0, new_tokens, new_tokens * (new_tokens + 2.0 * cached_tokens), cached_tokens)


def step_features(sequences: float, context_tokens: float) -> tuple[float, ...]:
    return (1.0, sequences, context_tokens)


@dataclass(slots=True)
class _Kind:
    """What is known of one kind of work."""

    fit: RelativeLeastSquares
    seen_max: list[float] = field(default_factory=lambda: [0.0, 0.0])
    seen_min: list[float] = field(default_factory=lambda: [math.inf, math.inf])
    actors: int = 0
    log_ratios: float = 0.0  # sum over the actors

    @property
    def typical(self) -> float:
        """Mean log ratio: how the fit itself is off just now, until it has followed."""
        return self.log_ratios / self.actors if self.actors else 0.0


@dataclass(slots=True)
class _Speed:
    """How one actor compares to the fit of its kind."""

    kind: _Kind
    log_ratio: float = 0.0
    samples: int = 0
    last_s: float = -math.inf


class Predictor:
    """Seconds of one sort of work, by kind and actor, from two numbers that size it."""

    def __init__(
        self, name: str, features: Features, prior_of: Callable[[str], Sequence[float]]
    ) -> None:
        """`prior_of` a kind: seconds per unit of each feature."""
        self.name = name
        self.errors = ErrorTrack()
        self._features = features
        self._prior_of = prior_of
        self._kinds: dict[str, _Kind] = {}
        self._speeds: dict[str, _Speed] = {}

    def seconds(self, kind: str, actor: str, first: float, second: float = 0.0) -> float:
        """Predicted seconds (sizes: tokens new and cached; sequences and context; bytes)."""
        return self.base(kind, first, second) * self.ratio(kind, actor)

    def base(self, kind: str, first: float, second: float = 0.0) -> float:
        """As `seconds`, for the typical actor of the kind."""
        known = self._kinds.get(kind)
        features = self._features(first, second)
        if known is None or not known.fit.samples:
            return self._by_prior(kind, features)
        at = self._features(
            min(max(first, known.seen_min[0]), known.seen_max[0]),
            min(max(second, known.seen_min[1]), known.seen_max[1]),
        )
        seconds = known.fit.predict(at)
        if at != features:
            seconds *= self._by_prior(kind, features) / self._by_prior(kind, at)
        return seconds

    def ratio(self, kind: str, actor: str) -> float:
        """What `base` must be multiplied with for this actor; for one unknown, what holds for the
        typical one."""
        speed = self._speeds.get(actor)
        if speed is None:
            known = self._kinds.get(kind)
            return math.exp(known.typical) if known else 1.0
        # Few samples count little: one bad start must not keep work away, and so better samples.
        sure = speed.samples / (speed.samples + _RATIO_DOUBT)
        return math.exp(speed.kind.typical + sure * (speed.log_ratio - speed.kind.typical))

    def trusted(self, kind: str, first: float, second: float = 0.0) -> bool:
        """Whether the answer rests on samples not far from these sizes."""
        known = self._kinds.get(kind)
        if known is None or known.fit.samples < _TRUST_SAMPLES:
            return False
        return first <= _TRUST_BEYOND * known.seen_max[0] and second <= _TRUST_BEYOND * max(
            known.seen_max[1], known.seen_max[0]
        )

    def last_sample_s(self, actor: str) -> float:
        """When the actor last said how long its work took; minus infinity: never."""
        speed = self._speeds.get(actor)
        return speed.last_s if speed else -math.inf

    def learn(
        self, kind: str, actor: str, first: float, second: float, seconds: float, now_s: float
    ) -> None:
        """What really happened. Impossible values are ignored."""
        if not 0.0 < seconds < math.inf or first < 0 or second < 0:
            return
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= _KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            known = self._kinds[kind] = _Kind(RelativeLeastSquares(self._prior_of(kind)))
        if known.fit.samples:
            self.errors.note(self.seconds(kind, actor, first, second), seconds)
        # The fit describes the typical actor. Were it given what the actor's whole ratio leaves,
        # both could drift apart together.
        ratio = self.ratio(kind, actor) / math.exp(known.typical)
        for axis, value in enumerate((first, second)):
            known.seen_max[axis] = max(known.seen_max[axis], value)
            known.seen_min[axis] = min(known.seen_min[axis], value)
        features = self._features(first, second)
        known.fit.learn(features, seconds / ratio)
        self._learn_ratio(known, actor, seconds / known.fit.predict(features), now_s)

    def _learn_ratio(self, kind: _Kind, actor: str, ratio: float, now_s: float) -> None:
        speed = self._speeds.get(actor)
        if speed is not None and speed.kind is not kind:  # its role or model changed
            self._drop(actor)
            speed = None
        if speed is None:
            if len(self._speeds) >= _ACTORS_MAX:
                self._drop(next(iter(self._speeds)))
            speed = self._speeds[actor] = _Speed(kind, kind.typical)
            kind.actors += 1
            kind.log_ratios += speed.log_ratio
        speed.last_s = now_s
        bounded = min(max(ratio, 1.0 / _RATIO_MAX), _RATIO_MAX)
        if kind.fit.samples < _RATIO_SAMPLES:  # the fit itself still moves
            return
        speed.samples += 1
        step = max(_RATIO_STEP_MIN, 1.0 / (2.0 + speed.samples))
        moved = step * (math.log(bounded) - speed.log_ratio)
        speed.log_ratio += moved
        kind.log_ratios += moved

    def _drop(self, actor: str) -> None:
        speed = self._speeds.pop(actor)
        speed.kind.actors -= 1
        speed.kind.log_ratios -= speed.log_ratio

    def forget(self, forgotten: Callable[[str], bool]) -> None:
        """These actors left; their successors start without an opinion."""
        for actor in [actor for actor in self._speeds if forgotten(actor)]:
            self._drop(actor)

    def stats(self) -> dict[str, int]:
        return {"kinds": len(self._kinds), "actors": len(self._speeds)}

    def _by_prior(self, kind: str, features: tuple[float, ...]) -> float:
        return sum(p * x for p, x in zip(self._prior_of(kind), features, strict=True))

    def check(self) -> None:
        for kind in self._kinds.values():
            kind.fit.check()
        bound = math.log(_RATIO_MAX) + 1e-9
        assert all(abs(s.log_ratio) <= bound for s in self._speeds.values()), "ratios are bounded"


def prefill_predictor() -> Predictor:
    """Sizes: new and cached tokens. Kinds: role and model."""
    return Predictor("prefill", prefill_features, lambda kind: PREFILL_PRIOR)


def step_predictor() -> Predictor:
    """Sizes: sequences and tokens of context. Kinds: role and model."""
    return Predictor("step", step_features, lambda kind: STEP_PRIOR)
