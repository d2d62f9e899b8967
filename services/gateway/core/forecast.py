"""Forecast: how far conductors' predictions of the first token were from what users saw."""

from collections import deque

KEPT = 512  # the last ones count


class Forecast:
    """|predicted - actual| / actual of the last requests, and how late they were."""

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=KEPT)

    def note(self, predicted_s: float, actual_s: float) -> float | None:
        """Actual over predicted; None when there was no prediction to speak of."""
        if predicted_s <= 0.0 or actual_s <= 0.0:
            return None
        self._errors.append(abs(predicted_s - actual_s) / actual_s)
        return actual_s / predicted_s

    def quantile(self, share: float) -> float:
        """0 <= share <= 1; 0.0 while nothing was seen."""
        ranked = sorted(self._errors)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0
