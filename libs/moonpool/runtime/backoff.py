"""How long to wait before the next try. Pure: randomness is handed in."""

import random


class Backoff:
    """Doubles from `first_s` to `max_s`, each wait cut by up to half at random so that those who
    failed together do not come back together."""

    def __init__(self, first_s: float, max_s: float, rng: random.Random) -> None:
        if not 0 < first_s <= max_s:
            raise ValueError(f"0 < first_s {first_s} <= max_s {max_s} must hold")
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s
        self._rng = rng
        self.tries = 0

    def next_s(self) -> float:
        """Seconds to wait now."""
        self.tries += 1
        wait_s = self._next_s * (1.0 - 0.5 * self._rng.random())
        self._next_s = min(self._max_s, self._next_s * 2.0)
        return wait_s

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s
        self.tries = 0
