"""Random: any prefill, with what happens to be in its own pool."""

import random

from services.conductor.policies.base import Choice, View
from services.conductor.policies.pairing import with_least_loaded_decode


class RandomPolicy:
    """Every prefill is as likely as any other."""

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)

    def choose(self, view: View) -> Choice | None:
        if not view.candidates:
            return None
        candidate = view.candidates[self._dice.randrange(len(view.candidates))]
        return with_least_loaded_decode(view, view.with_own_prefix(candidate))
