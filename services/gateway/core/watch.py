"""Who still owes tokens of an answer, and whether it is still there.

After a second of silence everyone who owes us is asked for a sign of life, once a second. Nobody
at the subject is proof of death; no answer to pings for `silence_s` counts as death. Someone who
answers may take as long as it likes for the first token (its queue may be long, and the request's
deadline bounds it), but is stuck when it gives no further token for `silence_s`.
"""

from enum import StrEnum

from moonpool.messages.errors import ErrorInfo
from moonpool.messages.ids import InstanceId
from moonpool.messages.plan import Plan
from services.gateway.core.effects import DECODE, PREFILL, AskPing, Door

PING_AFTER_S = 1.0
GONE = "no_responder"  # code of the bus: nobody serves the subject


class Alarm(StrEnum):
    NONE = "none"
    GAP = "gap"  # tokens are missing and did not come within a second
    SILENT = "silent"


class Watch:
    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self.doors: frozenset[Door] = frozenset()
        self.pings: list[AskPing] = []  # to send after the last `tick`
        self._decode: InstanceId | None = None
        self._heard_s = 0.0  # last token event
        self._any = False  # a token event came in this attempt
        self._alive_s: dict[Door, float] = {}  # last sign of life
        self._asked: set[Door] = set()  # a ping is under way
        self._next_ping_s = 0.0

    def begin(self, plan: Plan, now_s: float) -> None:
        """A new attempt by `plan`."""
        self._decode = plan.decode
        doors = {Door(PREFILL, plan.prefill)}
        if plan.decode != plan.prefill:
            doors.add(Door(DECODE, plan.decode))
        self._any = False
        self._watch(frozenset(doors), now_s)

    def heard(self, source: InstanceId, now_s: float) -> bool:
        """A token event came from `source`. False when it owes us nothing."""
        if all(door.instance != source for door in self.doors):
            return False
        doors = self.doors
        if source == self._decode and len(doors) > 1:
            doors = frozenset(door for door in doors if door.side == DECODE)  # prefill is through
        self._any = True
        self._watch(doors, now_s)
        return True

    def ponged(self, door: Door, lost: ErrorInfo | None, now_s: float) -> bool:
        """True when this proves that an instance we need is dead."""
        self._asked.discard(door)
        if door not in self.doors:
            return False
        if lost is None:
            self._alive_s[door] = now_s
            return False
        return lost.code == GONE

    def tick(self, now_s: float, attempt: int, gap: bool) -> tuple[Alarm, frozenset[Door]]:
        """An alarm and whom it is about; pings to send are in `pings`."""
        self.pings = []
        silent_s = now_s - self._heard_s
        if silent_s < PING_AFTER_S:
            return Alarm.NONE, frozenset()
        if gap:
            return Alarm.GAP, frozenset()
        dead = frozenset(d for d in self.doors if now_s - self._alive_s[d] >= self._silence_s)
        if dead:
            return Alarm.SILENT, dead
        if self._any and silent_s >= self._silence_s:
            return Alarm.SILENT, self.doors
        if now_s >= self._next_ping_s:
            self._next_ping_s = now_s + PING_AFTER_S
            waiting = sorted(self.doors - self._asked, key=lambda door: door.side)
            self._asked.update(waiting)
            self.pings = [AskPing(door, attempt) for door in waiting]
        return Alarm.NONE, frozenset()

    def wake_at_s(self, now_s: float) -> float:
        return max(self._heard_s + PING_AFTER_S, min(self._next_ping_s, now_s + PING_AFTER_S))

    def _watch(self, doors: frozenset[Door], now_s: float) -> None:
        self.doors = doors
        self._heard_s = now_s
        self._next_ping_s = now_s + PING_AFTER_S
        self._alive_s = dict.fromkeys(doors, now_s)
        if not self._any:
            self._asked.clear()
