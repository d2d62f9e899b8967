"""Least squares on relative error: small linear models that learn on-line.

A model is `seconds = sum(weight * prior * feature)` with weights that start at 1, so the prior says
how the seconds grow and the samples say by how much. Errors count relative to what was seen, so
that long prompts do not drown the short ones. Older samples fade. What the samples leave open (a
batch that grew with its context, and never without it) is held near the prior; no weight falls
below 0. Both are part of what is solved for, not corrections of its answer: corrected again and
again, weights that no sample tells apart would drift away against each other.
"""

from collections import deque
from collections.abc import Sequence

_WARM_SAMPLES = 6  # until then only the prior's scale is learned: too few for its shape
_FORGETTING = 0.995  # per sample: a drift is followed within a few hundred
_HOLD = 1e-4  # samples that the prior's shape weighs as much as: small terms must be learned too
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
        # Faded sums over samples z (scaled features over seconds seen): of z z', and of z.
        self._squares = [[0.0] * self._size for _ in prior]
        self._sums = [0.0] * self._size
        self._warming: list[tuple[tuple[float, ...], float]] = []
        self._is_solved = True
        self.samples = 0

    @property
    def warm(self) -> bool:
        return self.samples >= _WARM_SAMPLES

    def predict(self, features: Sequence[float]) -> float:
        """Seconds, always > 0."""
        if not self._is_solved:
            self._weights = _held_fit(self._squares, self._sums)
            self._is_solved = True
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
            self._add(features, seconds)
            return
        self._warming.append((tuple(features), seconds))
        self._rescale()
        if self.samples == _WARM_SAMPLES:
            for known, took in self._warming:
                self._add(known, took)
            self._warming.clear()

    def _rescale(self) -> None:
        """While warming up: the prior's shape, times the median ratio of seen to predicted."""
        ratios = sorted(took / self.predict(features) for features, took in self._warming)
        ratio = ratios[len(ratios) // 2]
        self._scales = [scale * ratio for scale in self._scales]

    def _add(self, features: Sequence[float], seconds: float) -> None:
        floor = _RATIO_FLOOR * self.predict(features)
        seen = max(seconds, floor)  # one freak sample does not turn the model over
        z = [scale * feature / seen for scale, feature in zip(self._scales, features, strict=True)]
        for row, left in zip(self._squares, z, strict=True):
            for at, right in enumerate(z):
                row[at] = _FORGETTING * row[at] + left * right
        self._sums = [_FORGETTING * total + x for total, x in zip(self._sums, z, strict=True)]
        self._is_solved = False

    def check(self) -> None:
        """Finite and not negative."""
        assert all(0.0 <= w < float("inf") for w in self._weights), self._weights
        assert all(0.0 < s < float("inf") for s in self._scales), self._scales


def _held_fit(squares: Sequence[Sequence[float]], sums: Sequence[float]) -> list[float]:
    """Weights of least error, held near 1 and not below 0: what would be, stays 0."""
    free = list(range(len(sums)))
    weights = [0.0] * len(sums)
    while free:
        rows = [
            [squares[i][j] + (_HOLD if i == j else 0.0) for j in free] + [sums[i] + _HOLD]
            for i in free
        ]
        found = dict(zip(free, _solved(rows), strict=True))
        least = min(free, key=found.__getitem__)
        if found[least] >= 0.0:
            for at, weight in found.items():
                weights[at] = weight
            break
        free.remove(least)
    return weights


def _solved(rows: list[list[float]]) -> list[float]:
    """x of a symmetric, positive system, each row with its right side at the end."""
    size = len(rows)
    for at in range(size):
        top = rows[at]
        for row in rows[at + 1 :]:
            share = row[at] / top[at]
            for column in range(at, size + 1):
                row[column] -= share * top[column]
    x = [0.0] * size
    for at in reversed(range(size)):
        row = rows[at]
        x[at] = (row[size] - sum(row[j] * x[j] for j in range(at + 1, size))) / row[at]
    return x


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
