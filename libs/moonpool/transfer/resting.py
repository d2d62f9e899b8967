"""How long something that failed is left alone, before it is tried again. Pure."""

REST_MIN_S = 0.5
REST_MAX_S = 30.0


class Rest:
    """Longer each time, until it has worked again."""

    def __init__(self) -> None:
        self.until_s = 0.0
        self.times = 0
        self._next_s = REST_MIN_S

    def now(self, now_s: float) -> bool:
        return now_s < self.until_s

    def failed(self, now_s: float) -> bool:
        """True when a rest begins: failures during one are its echo and make it no longer."""
        if now_s < self.until_s:
            return False
        self.until_s = now_s + self._next_s
        self._next_s = min(self._next_s * 2, REST_MAX_S)
        self.times += 1
        return True

    def over(self) -> None:
        """It may be used again; should it fail soon, its next rest is longer all the same."""
        self.until_s = 0.0

    def worked(self) -> None:
        """It is as good as new."""
        self.until_s = 0.0
        self._next_s = REST_MIN_S
