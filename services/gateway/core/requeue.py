"""Requeue: when a prompt that still waits is better tried elsewhere.

The world changes after a plan: the queue turned out longer than predicted, or the instance drains
or fell silent. Then another plan is asked for, without the instance, and taken when it promises
more than waiting on; at most `TRIES_MAX` times for one request. A prompt that has begun is never
moved: its instance says so when the prompt is to be withdrawn.
"""

import math

from moonpool.messages.plan import Plan

TRIES_MAX = 2
OVERRUN_MIN_S = 2.0  # beyond the prediction, before anything is asked
OVERRUN_SHARE = 1.0  # of the prediction


class Requeue:
    """Of one request, over all its attempts. Time is handed in."""

    def __init__(self) -> None:
        self.tries = 0
        self._begun_s = 0.0
        self._predicted_s = 0.0
        self._due_s = math.inf
        self._doubted = False
        self._asked_back = False  # the prompt is to be withdrawn

    def begin(self, plan: Plan, now_s: float) -> None:
        """The prompt was submitted by `plan`."""
        self._begun_s, self._predicted_s = now_s, max(0.0, plan.predicted_ttft_s)
        self._doubted, self._asked_back = False, False
        patience_s = max(OVERRUN_MIN_S, OVERRUN_SHARE * self._predicted_s)
        self._due_s = now_s + self._predicted_s + patience_s

    def heard(self) -> None:
        """A token came: it stays where it is."""
        self._due_s, self._asked_back = math.inf, False

    def doubt(self, now_s: float) -> None:
        """Its instance drains, or fell silent."""
        if self._due_s < math.inf:
            self._due_s, self._doubted = now_s, True

    def due_s(self) -> float:
        """When to ask for another plan; infinity: never."""
        return self._due_s if self.tries < TRIES_MAX else math.inf

    def ask(self, now_s: float) -> bool:
        """Whether to ask now. Counts as a try."""
        if now_s < self.due_s():
            return False
        self.tries += 1
        self._due_s = now_s + 2.0 * max(OVERRUN_MIN_S, now_s - self._begun_s)
        return True

    def offered(self, plan: Plan | None, now_s: float) -> bool:
        """Whether `plan` is better, so that the prompt must be withdrawn. As long again as it is
        late already, it is expected to wait on."""
        late_s = now_s - self._begun_s - self._predicted_s
        if plan is None or self._due_s == math.inf:
            return False
        if not self._doubted and plan.predicted_ttft_s >= late_s:
            return False
        self._asked_back = True
        return True

    def withdrawn(self, done: bool) -> bool:
        """Whether it goes elsewhere; else it stays where it is."""
        asked_back, self._asked_back = self._asked_back, False
        return done and asked_back
