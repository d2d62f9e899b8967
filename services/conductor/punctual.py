"""How punctual first tokens are: what became of predictions, and what one must allow for.

A prompt's turn came when its prefill does not name it any more. Its time over the predicted one is
a ratio; admission asks for a high quantile of the last ones, since whoever is only just in time by
the prediction is late in every other case: shorter prompts that come later overtake. Before
anything was seen the ratios are taken to be wide; each real one drives one of those out. Pure.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from moonpool.messages.ids import RequestId
from moonpool.messages.load import LoadReport, request_tag
from services.conductor.regression import ErrorTrack

SHARE = 0.8  # of first tokens that are to come within the time allowed for
ALLOWED_MAX = 2.0  # times the prediction
_PRIORS = 16
PRIOR_RATIOS = tuple(1.0 + 0.02 * step for step in range(_PRIORS))  # the widest goes first
_KEPT = 128
_HOLD_S = 0.25  # a report this long after a plan would name its prompt
_NOTED_FROM = 0.5  # of the promise: how late the soon ones are says little of those that matter
_PER_MEMBER_MAX = 1024
_LIFE_S = 600.0


@dataclass(frozen=True, slots=True)
class _Due:
    at_s: float
    predicted_s: float
    is_noted: bool
    is_try: bool  # nobody knew how long it takes


class Punctuality:
    """Prompts planned and not done, by prefill, and ratios of those that are."""

    def __init__(self) -> None:
        self._due: dict[str, dict[int, _Due]] = {}
        self._ratios: deque[float] = deque(maxlen=_KEPT)
        self._allowed = self._quantile()
        self.errors = ErrorTrack()

    @property
    def allowed(self) -> float:
        """Times a prediction, the time in which most such first tokens come; >= 1."""
        return self._allowed

    def planned(
        self,
        request: RequestId,
        member: str,
        now_s: float,
        predicted_s: float,
        promise_s: float,
        is_try: bool,
    ) -> None:
        """A plan sends the request there. `is_try`: the prediction rests on nothing seen."""
        held = self._due.setdefault(member, {})
        if len(held) >= _PER_MEMBER_MAX:
            del held[next(iter(held))]
        is_noted = not is_try and predicted_s >= _NOTED_FROM * promise_s
        held[request_tag(request)] = _Due(now_s, predicted_s, is_noted, is_try)

    def tries(self, member: str) -> int:
        """Prompts under way there of which nobody knew how long they take."""
        return sum(due.is_try for due in self._due.get(member, {}).values())

    def reported(self, report: LoadReport, now_s: float) -> list[int]:
        """Whom a load report names still waits; of more than it names nothing is known. Returns
        whose turn came since the last one."""
        held = self._due.get(report.id)
        if not held or report.queued_requests > len(report.prompts):
            return []
        named = {prompt.tag for prompt in report.prompts}
        done = [t for t, d in held.items() if t not in named and now_s - d.at_s > _HOLD_S]
        for tag in done:
            due = held.pop(tag)
            if due.is_noted:
                self._note(due.predicted_s, now_s - due.at_s)
        return done

    def withdraw(self, request: RequestId, members: Iterable[str]) -> None:
        """They did not take it after all."""
        for member in members:
            self._due.get(member, {}).pop(request_tag(request), None)

    def forget(self, member: str) -> None:
        self._due.pop(member, None)

    def expire(self, now_s: float) -> None:
        """Drops what nobody ever reported on."""
        for member, held in list(self._due.items()):
            for tag in [t for t, due in held.items() if now_s - due.at_s > _LIFE_S]:
                del held[tag]
            if not held:
                del self._due[member]

    def stats(self) -> dict[str, int]:
        return {
            "first_tokens_due": sum(map(len, self._due.values())),
            "first_tokens_noted": self.errors.samples,
        }

    def check(self) -> None:
        assert 1.0 <= self._allowed <= ALLOWED_MAX
        assert all(len(held) <= _PER_MEMBER_MAX for held in self._due.values())

    def _note(self, predicted_s: float, took_s: float) -> None:
        self.errors.note(predicted_s, took_s)
        self._ratios.append(took_s / max(1e-3, predicted_s))
        self._allowed = self._quantile()

    def _quantile(self) -> float:
        ranked = sorted([*PRIOR_RATIOS[: max(0, _PRIORS - len(self._ratios))], *self._ratios])
        at = min(len(ranked) - 1, int(SHARE * len(ranked)))
        return min(ALLOWED_MAX, max(1.0, ranked[at]))
