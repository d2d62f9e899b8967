"""How long to look for completions before sleeping."""

import time
from collections.abc import Callable

LOOK_MIN_S = 5e-6
LOOK_MAX_S = 200e-6


class Patience:
    """Looks longer while looking pays, and hardly at all when it does not: a busy path sees its
    completions at once, a slow one burns no core. Used by one thread."""

    def __init__(self) -> None:
        self.look_s = LOOK_MAX_S / 4

    def look(self, see: Callable[[], bool]) -> bool:
        """True as soon as `see` is. Gives the GIL back between looks."""
        until_s = time.perf_counter() + self.look_s
        while time.perf_counter() < until_s:
            time.sleep(0)
            if see():
                self.look_s = min(self.look_s * 2, LOOK_MAX_S)
                return True
        self.look_s = max(self.look_s / 2, LOOK_MIN_S)
        return False
