"""The life of one request, from plan to end, over any number of instances that may die.

    PLAN -> RESERVE -> SUBMIT -> STREAM -> DONE
      ^        |          |        |
      +--------+----------+--------+   refused, dead, silent or failed: another attempt, with that
                                       instance excluded and the tokens so far behind the prompt

Pure: answers, token events and the time come in, effects go out. Nothing is repeated and nothing
dropped, because a token counts only when (attempt, index) is right (`intake.py`). `watch.py` knows
who still owes us tokens and for how long it has been silent.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from moonpool.messages.decode import ReserveReply
from moonpool.messages.errors import Blame, ErrorInfo
from moonpool.messages.ids import InstanceId
from moonpool.messages.plan import Plan, PlanReply
from moonpool.messages.prefill import SubmitReply
from moonpool.messages.tokens import Timings, TokenEvent
from services.gateway.core.effects import (
    DECODE,
    PREFILL,
    AskPlan,
    AskReplan,
    AskReserve,
    AskSubmit,
    AskWithdraw,
    Door,
    Effect,
    End,
    Give,
    SendCancel,
)
from services.gateway.core.errors import ApiError, Refused, TooLate, Unavailable, from_info
from services.gateway.core.intake import Intake
from services.gateway.core.job import Job, Text
from services.gateway.core.requests import plan_request, reserve_request, submit_request
from services.gateway.core.requeue import Requeue
from services.gateway.core.watch import GONE, Alarm, Watch

RESERVE_TTL_S = 120.0  # a reservation outlives a prefill's queue, not the request
START_MIN_S = 0.01  # a promise that is late already: tried only where it begins at once
RETRY_MIN_S, RETRY_MAX_S = 0.2, 1.0  # between plans, while an answer under way finds no place
DECODE_FAULTS = frozenset({"decode_lost", "push_failed"})  # prefill says so about the decode
REQUEUED = "requeued"  # why an attempt ended that had only waited
PLANS_MAX = 64  # of one request; a bound on going round in circles, never met in practice


class Stage(StrEnum):
    PLAN = "plan"
    RESERVE = "reserve"
    SUBMIT = "submit"
    STREAM = "stream"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Limits:
    deadline_s: float  # on the clock of all `now_s`: the request ends then
    silence_s: float
    attempts_max: int  # instances that may take up the work
    first_by_s: float = math.inf  # the caller's own promise of a first token ends then


@dataclass(slots=True)
class Facts:
    """What happened, for usage, audit and metrics."""

    attempts: int = 0  # plans that were tried
    accepted: int = 0  # submits that were taken up
    plans: list[Plan] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # why plans[i] ended early
    cached: dict[str, int] = field(default_factory=dict)  # tier -> tokens, as the first tokens said
    timings: dict[InstanceId, Timings] = field(default_factory=dict)
    refusal: str = ""  # code of the last refusal or failure


class Life:
    def __init__(self, job: Job, limits: Limits) -> None:
        self.job = job
        self.limits = limits
        self.stage = Stage.PLAN
        self.attempt = 0
        self.text = Text(job)
        self.facts = Facts()
        self._intake = Intake()
        self._plan: Plan | None = None
        self._watch = Watch(limits.silence_s)
        self._requeue = Requeue()
        self._touched: set[Door] = set()  # may hold something of the current attempt
        self._writing = False  # a prefill may have taken the current attempt up
        self._excluded: set[InstanceId] = set()
        self._trouble: ErrorInfo | None = None  # why there is another attempt
        self._patient_until_s = 0.0  # refusals are waited out: an answer is under way
        self._cached_seen = False

    @property
    def over(self) -> bool:
        return self.stage is Stage.DONE

    # -- what comes in ----------------------------------------------------------------------

    def start(self) -> list[Effect]:
        return [self._ask_plan(0.0)]

    def planned(self, reply: PlanReply | ErrorInfo, now_s: float) -> list[Effect]:
        """The conductor's answer, or why there is none."""
        if self.stage is not Stage.PLAN:
            return []
        refusal = reply if isinstance(reply, ErrorInfo) else reply.refusal
        plan = None if isinstance(reply, ErrorInfo) else reply.plan
        if plan is None:
            return self._not_planned(refusal or _no_conductor("an empty plan came"), now_s)
        self._plan = plan
        self.facts.plans.append(plan)
        if plan.prefill == plan.decode:
            return self._submit(None, now_s)
        self.stage = Stage.RESERVE
        self._touched.add(Door(DECODE, plan.decode))
        ttl_s = min(RESERVE_TTL_S, self.limits.deadline_s - now_s)
        message = reserve_request(self.job, self.text, self.attempt, ttl_s)
        return [AskReserve(plan.decode, message)]

    def reserved(self, reply: ReserveReply | ErrorInfo, now_s: float) -> list[Effect]:
        if self.stage is not Stage.RESERVE:
            return []
        assert self._plan is not None
        refusal = reply if isinstance(reply, ErrorInfo) else reply.refusal
        if refusal is not None or isinstance(reply, ErrorInfo):
            door = Door(DECODE, self._plan.decode)
            return self._turned_away(door, refusal or _lost("decode"), now_s)
        return self._submit(reply, now_s)

    def submitted(self, reply: SubmitReply | ErrorInfo, now_s: float) -> list[Effect]:
        if self.stage is not Stage.SUBMIT:
            return []  # its tokens came before its answer
        assert self._plan is not None
        refusal = reply if isinstance(reply, ErrorInfo) else reply.refusal
        if refusal is not None:
            self._writing = isinstance(reply, ErrorInfo) and reply.code != GONE
            return self._turned_away(Door(PREFILL, self._plan.prefill), refusal, now_s)
        self._streaming()
        return []

    def token(self, event: TokenEvent, now_s: float) -> list[Effect]:
        """A token event from anyone, in any order."""
        if self.stage not in (Stage.SUBMIT, Stage.STREAM) or event.attempt != self.attempt:
            self._intake.void += 1
            return []
        if not self._watch.heard(event.source, now_s):
            self._intake.void += 1
            return []
        self._streaming()
        self._requeue.heard()
        if event.finish in ("error", "cancelled"):
            return self._failed(event, now_s)
        effects: list[Effect] = []
        for each in self._intake.take(event, len(self.text.output)):
            effects += self._take(each)
            if self.over:
                break
        return effects

    def ponged(
        self, door: Door, attempt: int, lost: ErrorInfo | None, now_s: float
    ) -> list[Effect]:
        """An answer to a ping: alive, or why there was none."""
        if attempt != self.attempt or self.stage is not Stage.STREAM:
            return []
        if self._watch.ponged(door, lost, now_s):
            return self._move_on(frozenset({door}), _lost(door.instance), now_s)
        return []

    def gone(self, instance: InstanceId, now_s: float) -> list[Effect]:
        """Proof from elsewhere that an instance died or started anew."""
        if self.stage is not Stage.STREAM:
            return []
        doors = frozenset(door for door in self._watch.doors if door.instance == instance)
        return self._move_on(doors, _lost(instance), now_s) if doors else []

    def doubted(self, instance: InstanceId, now_s: float) -> list[Effect]:
        """An instance drains or fell silent: a prompt that still waits there may go elsewhere."""
        if self.stage is not Stage.STREAM or self._plan is None:
            return []
        if instance in (self._plan.prefill, self._plan.decode):
            self._requeue.doubt(now_s)
        return self._ask_replan(now_s)

    def replanned(self, reply: PlanReply | ErrorInfo, attempt: int, now_s: float) -> list[Effect]:
        """A plan for a prompt that waits, or none."""
        plan = None if isinstance(reply, ErrorInfo) else reply.plan
        if attempt != self.attempt or self.stage is not Stage.STREAM or self._plan is None:
            return []
        if not self._requeue.offered(plan, now_s):
            return []
        return [AskWithdraw(Door(PREFILL, self._plan.prefill), attempt)]

    def withdrawn(self, done: bool, attempt: int, now_s: float) -> list[Effect]:
        """Whether the prompt was taken back before anything of it was computed. If so it is planned
        anew, and patient: it had been accepted."""
        if attempt != self.attempt or self.stage is not Stage.STREAM or self._plan is None:
            return []
        if not self._requeue.withdrawn(done):
            return []
        self._excluded.add(self._plan.prefill)
        self._writing = False
        self.facts.accepted -= 1
        self._patient_until_s = now_s + self.limits.silence_s
        info = ErrorInfo(REQUEUED, Blame.CAPACITY, "it waited too long", elsewhere=True)
        return self._again(frozenset(), info)

    def tick(self, now_s: float) -> list[Effect]:
        """Time passed: call it at `wake_at_s`."""
        if self.stage is Stage.DONE:
            return []
        if now_s >= self.limits.deadline_s:
            return self._end("error", TooLate("the request took longer than this server allows"))
        if self.stage is not Stage.STREAM:
            return []
        alarm, doors = self._watch.tick(now_s, self.attempt, gap=self._intake.has_gap)
        if alarm is Alarm.GAP:
            info = ErrorInfo("tokens_lost", Blame.PEER, "tokens were lost on the way")
            return self._move_on(frozenset(), info, now_s)
        if alarm is Alarm.SILENT:
            names = " and ".join(sorted(door.instance for door in doors))
            return self._move_on(doors, _silent(names), now_s)
        return [*self._watch.pings, *self._ask_replan(now_s)]

    def wake_at_s(self, now_s: float) -> float:
        """When `tick` is to be called at the latest."""
        if self.stage is not Stage.STREAM:
            return self.limits.deadline_s
        return min(self.limits.deadline_s, self._requeue.due_s(), self._watch.wake_at_s(now_s))

    def stop(self, finish: str) -> list[Effect]:
        """We end it: a stop string matched ("stop"), or the client is gone ("cancelled")."""
        return [] if self.stage is Stage.DONE else self._end(finish)

    # -- inside -----------------------------------------------------------------------------

    def _ask_plan(self, delay_s: float) -> AskPlan:
        self.stage = Stage.PLAN
        self._plan = None
        self._writing = False
        self.facts.attempts += 1
        message = plan_request(self.job, self.text, self.attempt, self._excluded)
        return AskPlan(message, delay_s)

    def _ask_replan(self, now_s: float) -> list[Effect]:
        if self._plan is None or not self._requeue.ask(now_s):
            return []
        elsewhere = self._excluded | {self._plan.prefill}
        return [AskReplan(plan_request(self.job, self.text, self.attempt, elsewhere, probe=True))]

    def _submit(self, reservation: ReserveReply | None, now_s: float) -> list[Effect]:
        assert self._plan is not None
        self.stage = Stage.SUBMIT
        self._touched.add(Door(PREFILL, self._plan.prefill))
        self._writing = True
        self._watch.begin(self._plan, now_s)
        self._requeue.begin(self._plan, now_s)
        message = submit_request(
            self.job,
            self.text,
            self.attempt,
            self._plan,
            reservation,
            max(0.0, self.limits.deadline_s - now_s),
            self._start_by_s(now_s),
        )
        return [AskSubmit(self._plan.prefill, message)]

    def _start_by_s(self, now_s: float) -> float:
        """Seconds within which the prompt must begin; 0: no limit but the deadline."""
        if self.text.output or self.limits.first_by_s == math.inf:
            return 0.0
        return max(START_MIN_S, self.limits.first_by_s - now_s)

    def _streaming(self) -> None:
        if self.stage is Stage.SUBMIT:
            self.stage = Stage.STREAM
            self.facts.accepted += 1

    def _take(self, event: TokenEvent) -> list[Effect]:
        """An event that counts."""
        if event.cached_tokens is not None and not self._cached_seen:
            self._cached_seen = True
            self.facts.cached = dict(event.cached_tokens)
        if event.timings is not None:
            self.facts.timings[event.source] = event.timings
        tokens = event.tokens[: self.text.left]
        self.text.output.extend(tokens)
        effects: list[Effect] = []
        if tokens:
            effects.append(Give(tokens, event.logprobs[: len(tokens)]))
        if event.finish:
            self._touched.clear()  # it has ended there by itself
            effects += self._end(event.finish)
        return effects

    def _failed(self, event: TokenEvent, now_s: float) -> list[Effect]:
        """An instance gives the request up."""
        info = event.error or ErrorInfo(
            "cancelled", Blame.PEER, f"{event.source} gave the request up", elsewhere=True
        )
        culprit = event.source
        if info.code in DECODE_FAULTS and self._plan is not None:
            culprit = self._plan.decode
        doors = frozenset(d for d in self._watch.doors if d.instance == culprit)
        if not info.elsewhere:
            return self._end("error", from_info(info))
        return self._move_on(doors, info, now_s)

    def _turned_away(self, door: Door, info: ErrorInfo, now_s: float) -> list[Effect]:
        """Refused or unreachable before any work: another one, without waiting."""
        if info.blame is Blame.CALLER and not info.elsewhere:
            return self._end("error", from_info(info))
        patient = now_s < self._patient_until_s
        if not patient and self.facts.attempts >= self.limits.attempts_max:
            return self._end("error", _gave_up(info))
        return self._again(frozenset({door}), info)

    def _move_on(self, doors: frozenset[Door], info: ErrorInfo, now_s: float) -> list[Effect]:
        """The work was taken up and then lost: go on elsewhere, and be patient about it."""
        if self.text.left == 0:
            return self._end("length")  # only the word that it is over was lost
        if self.facts.accepted >= self.limits.attempts_max:
            return self._end("error", _gave_up(info))
        self._patient_until_s = now_s + self.limits.silence_s
        return self._again(doors, info)

    def _again(self, doors: frozenset[Door], info: ErrorInfo) -> list[Effect]:
        self.facts.refusal = info.code
        if self.facts.attempts >= PLANS_MAX:
            return self._end("error", _gave_up(info))
        effects = self._cancels(dead=doors if info.code == GONE else frozenset())
        self._trouble = info
        self.facts.failures.append(info.code)
        self._excluded |= {door.instance for door in doors}
        self.attempt += 1
        self._intake.reset()
        return [*effects, self._ask_plan(0.0)]

    def _not_planned(self, refusal: ErrorInfo, now_s: float) -> list[Effect]:
        self.facts.refusal = refusal.code
        if now_s < self._patient_until_s and self.facts.attempts < PLANS_MAX:
            self._excluded.clear()  # whoever comes back is welcome
            wait_s = min(max(refusal.retry_after_s, RETRY_MIN_S), RETRY_MAX_S)
            return [self._ask_plan(wait_s)]
        if self._trouble is not None and refusal.code == "no_instances":
            return self._end("error", _gave_up(self._trouble))
        return self._end("error", from_info(refusal))

    def _cancels(self, dead: frozenset[Door] = frozenset()) -> list[Effect]:
        doors = sorted(self._touched - dead, key=lambda door: door.side)
        self._touched.clear()
        return [
            SendCancel(door, self.attempt, door.side == DECODE and not self._writing)
            for door in doors
        ]

    def _end(self, finish: str, error: ApiError | None = None) -> list[Effect]:
        effects = self._cancels()
        self.stage = Stage.DONE
        if error is not None:
            self.facts.refusal = error.code
            if len(self.facts.failures) < len(self.facts.plans):
                self.facts.failures.append(error.code)
        return [*effects, End(finish, error)]


def _lost(name: str) -> ErrorInfo:
    return ErrorInfo(GONE, Blame.PEER, f"{name} is gone", elsewhere=True)


def _silent(name: str) -> ErrorInfo:
    return ErrorInfo("instance_silent", Blame.PEER, f"{name} fell silent", elsewhere=True)


def _no_conductor(what: str) -> ErrorInfo:
    return ErrorInfo("no_conductor", Blame.PEER, what)


def _gave_up(info: ErrorInfo) -> ApiError:
    """Why nobody could finish it."""
    if info.blame is Blame.CAPACITY:
        return Refused(info.message, code=info.code, retry_after_s=info.retry_after_s)
    return Unavailable(f"no instance could finish the answer: {info.message}", code="instance_lost")
