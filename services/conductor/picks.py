"""Picks: what this conductor just sent somewhere, counted until load reports show it.

Without them a burst of prompts would all go to whoever looked idle in the last report.
"""

from collections import deque
from dataclasses import dataclass

from moonpool.messages.ids import RequestId
from moonpool.messages.load import request_tag

_HOLD_S = 0.25  # a report this long after a pick includes it: plan, reserve and submit are done
_LIFE_S = 3.0  # without any report a pick is void after it
_PER_MEMBER_MAX = 4096


@dataclass(frozen=True, slots=True)
class Pick:
    """One request's share in one member's load."""

    request: RequestId
    at_s: float
    work_s: float = 0.0  # prefill: seconds it occupies the instance
    due_s: float = 0.0  # prefill: those due earlier are computed first
    slots: int = 0  # decode: places in the batch
    blocks: int = 0
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """Sum of the picks that no report shows yet."""

    work_s: float = 0.0
    slots: int = 0
    blocks: int = 0
    context_tokens: int = 0


_NONE = Pending()


class Picks:
    """Recent picks by member."""

    def __init__(self) -> None:
        self._picks: dict[str, deque[Pick]] = {}

    def add(self, member: str, pick: Pick) -> None:
        """Counts `pick` against `member` from now on."""
        self._picks.setdefault(member, deque(maxlen=_PER_MEMBER_MAX)).append(pick)

    def reported(self, member: str, now_s: float, tags: frozenset[int] = frozenset()) -> None:
        """A load report of `member` came: older picks are part of it, and those it names."""
        self._drop_until(member, now_s - _HOLD_S)
        held = self._picks.get(member)
        if held and tags:
            kept = [pick for pick in held if request_tag(pick.request) not in tags]
            if len(kept) < len(held):
                self._keep(member, kept)

    def expire(self, now_s: float) -> None:
        """Drops picks that no report ever covered."""
        for member in list(self._picks):
            self._drop_until(member, now_s - _LIFE_S)

    def withdraw(self, request: RequestId, members: tuple[str, ...]) -> None:
        """`members` did not take the request after all."""
        for member in members:
            held = self._picks.get(member)
            if held:
                self._keep(member, [pick for pick in held if pick.request != request])

    def forget(self, member: str) -> None:
        self._picks.pop(member, None)

    def pending(self, member: str) -> Pending:
        held = self._picks.get(member)
        if not held:
            return _NONE
        work_s, slots, blocks, context = 0.0, 0, 0, 0
        for pick in held:
            work_s += pick.work_s
            slots += pick.slots
            blocks += pick.blocks
            context += pick.context_tokens
        return Pending(work_s, slots, blocks, context)

    def ahead_s(self, member: str, due_s: float) -> float:
        """Seconds of pending prefill work due no later than `due_s`."""
        held = self._picks.get(member, ())
        return sum(pick.work_s for pick in held if pick.due_s <= due_s)

    def behind(self, member: str, due_s: float) -> int:
        """Pending prefills due later than `due_s`."""
        return sum(pick.work_s > 0 and pick.due_s > due_s for pick in self._picks.get(member, ()))

    def _keep(self, member: str, picks: list[Pick]) -> None:
        if picks:
            self._picks[member] = deque(picks, maxlen=_PER_MEMBER_MAX)
        else:
            self._picks.pop(member, None)

    def stats(self) -> dict[str, int]:
        return {"picks": sum(map(len, self._picks.values()))}

    def _drop_until(self, member: str, limit_s: float) -> None:
        held = self._picks.get(member)
        if held is None:
            return
        while held and held[0].at_s <= limit_s:
            held.popleft()
        if not held:
            del self._picks[member]

    def check(self) -> None:
        for held in self._picks.values():
            times = [pick.at_s for pick in held]
            assert times == sorted(times), "picks are in order of time"
