"""Recursive least squares on relative error: small linear models that learn on-line.

A model is `seconds = sum(weight * prior * feature)` with weights that start at 1, so the prior says
how the seconds grow and the samples say by how much. Errors count relative to what was seen, so
that long prompts do not drown the short ones.
"""

from collections import deque
from collections.abc import Sequence

_WARM_SAMPLES = 6  # until then only the prior's scale is learned: too few for its shape
_FORGETTING = 0.995  # per sample: a drift is followed within a few hundred
_NOISE = 0.02  # variance of the relative error of one sample
_DOUBT = 25.0  # variance of a weight before any sample, and its ceiling: priors can be far off
_RATIO_FLOOR = 0.2  # a sample this far below the prediction counts as if it were only so far
_ERRORS_KEPT = 256
_SECONDS_MIN = 1e-6


class RelativeLeastSquares:
    """Weights of one linear model. `prior` holds seconds per unit of each feature, all > 0."""

    def __init__(self, prior: Sequence[float]) -> None:
        assert min(prior) > 0, "every prior is positive"
        self._size = len(prior)
        self._scales = list(prior)  # the prior, once warm times the scale that was seen
        self._weights = [1.0] * self._size
        self._doubt = [[_DOUBT * (i == j) for j in range(self._size)] for i in range(self._size)]
        self._warming: list[tuple[tuple[float, ...], float]] = []
        self.samples = 0

    @property
    def warm(self) -> bool:
        return self.samples >= _WARM_SAMPLES

    def predict(self, features: Sequence[float]) -> float:
        """Seconds, always > 0."""
        total = 0.0
        for weight, scale, feature in zip(self._weights, self._scales, features, strict=True):
            total += weight * scale * feature
        return total if total > _SECONDS_MIN else _SECONDS_MIN

    def learn(self, features: Sequence[float], seconds: float) -> None:
        """One sample. Anything but a positive time is ignored."""
        if not 0.0 < seconds < float("inf"):
            return
        self.samples += 1
        if self.samples > _WARM_SAMPLES:
            self._update(features, seconds)
            return
        self._warming.append((tuple(features), seconds))
        self._rescale()
        if self.samples == _WARM_SAMPLES:
            for known, took in self._warming:
                self._update(known, took)
            self._warming.clear()

    def _rescale(self) -> None:
        """While warming up: the prior's shape, times the median ratio of seen to predicted."""
        ratios = sorted(took / self.predict(features) for features, took in self._warming)
        ratio = ratios[len(ratios) // 2]
        self._scales = [scale * ratio for scale in self._scales]

    def _update(self, features: Sequence[float], seconds: float) -> None:
        floor = _RATIO_FLOOR * self.predict(features)
        seen = max(seconds, floor)  # one freak sample does not turn the model over
        z = [scale * feature / seen for scale, feature in zip(self._scales, features, strict=True)]
        doubt, size = self._doubt, self._size
        dz = [sum(doubt[i][j] * z[j] for j in range(size)) for i in range(size)]
        gain_by = _FORGETTING * _NOISE + sum(z[i] * dz[i] for i in range(size))
        error = 1.0 - sum(w * x for w, x in zip(self._weights, z, strict=True))
        for i in range(size):
            self._weights[i] = max(0.0, self._weights[i] + dz[i] / gain_by * error)
        # Forgetting makes doubt grow in directions that no sample tests: the ceiling holds it.
        grown = [
            [(doubt[i][j] - dz[i] * dz[j] / gain_by) / _FORGETTING for j in range(size)]
            for i in range(size)
        ]
        peak = max(grown[i][i] for i in range(size))
        shrink = _DOUBT / peak if peak > _DOUBT else 1.0
        self._doubt = [[value * shrink for value in row] for row in grown]

    def check(self) -> None:
        """Finite, not negative, and as sure of itself as it may be."""
        assert all(0.0 <= w < float("inf") for w in self._weights), self._weights
        assert all(0.0 < s < float("inf") for s in self._scales), self._scales
        assert all(0.0 <= self._doubt[i][i] <= _DOUBT * 1.001 for i in range(self._size))


class ErrorTrack:
    """How far predictions were from what happened: |predicted - actual| / actual, the last ones."""

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        self.samples = 0

    def note(self, predicted: float, actual: float) -> None:
        if actual > 0:
            self.samples += 1
            self._errors.append(abs(predicted - actual) / actual)

    def quantile(self, share: float) -> float:
        """0 <= share <= 1; 0.0 while nothing was seen."""
        ranked = sorted(self._errors)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0
