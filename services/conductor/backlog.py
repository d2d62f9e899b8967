"""Backlogs: what waits at each prefill, in the order of its turns.

Prefills compute prompts in the order in which they are due, so a new prompt waits only for those
due before it, and delays only those due after it. A backlog is worked out once per load report.
"""

import math
from bisect import bisect_right
from itertools import accumulate

from moonpool.messages.load import LoadReport
from services.conductor.fleet import Member
from services.conductor.predict import Predictor

_KEPT_MAX = 65536


class Backlog:
    """The prompts of one load report, in seconds."""

    __slots__ = ("_at_s", "_dues_s", "_total_s", "_until_s", "report")

    def __init__(self, member: Member, report: LoadReport, prefill: Predictor) -> None:
        self.report = report
        self._at_s = member.load_at_s
        kind, id = member.kind, member.id
        named = sorted((p.due_in_s, p.new_tokens, p.cached_tokens) for p in report.prompts)
        dues = [self._at_s + due_in_s for due_in_s, _, _ in named]
        works = [prefill.seconds(kind, id, new, cached) for _, new, cached in named]
        others = report.queued_requests - len(named)
        left = report.queued_tokens - sum(p.new_tokens for p in report.prompts)
        if others > 0 and left > 0:  # not named: come last, or all there is from older instances
            dues.append(dues[-1] if dues else -math.inf)
            works.append(others * prefill.seconds(kind, id, left / others, 0))
        self._dues_s = dues
        self._until_s = list(accumulate(works, initial=0.0))
        self._total_s = self._until_s[-1]

    def total_s(self, now_s: float) -> float:
        """Seconds until all of it is done."""
        return max(0.0, self._total_s - (now_s - self._at_s))

    def ahead_s(self, due_s: float, now_s: float) -> float:
        """Seconds until those are done who are due no later than `due_s`."""
        ahead_s = self._until_s[bisect_right(self._dues_s, due_s)]
        return max(0.0, ahead_s - (now_s - self._at_s))

    def behind(self, due_s: float) -> int:
        """How many are due later than `due_s`."""
        return len(self._dues_s) - bisect_right(self._dues_s, due_s)


class Backlogs:
    """By member. Not reported yet: see picks."""

    def __init__(self) -> None:
        self._known: dict[str, Backlog] = {}

    def of(self, member: Member, prefill: Predictor) -> Backlog | None:
        """None until its first load report."""
        report = member.load
        if report is None:
            return None
        known = self._known.get(member.id)
        if known is None or known.report is not report:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            known = self._known[member.id] = Backlog(member, report, prefill)
        return known

    def forget(self, id: str) -> None:
        self._known.pop(id, None)
