"""One request under way: carries out what its life asks for, and hands tokens to whoever reads.

`async with Flight(..) as flight:` subscribes before anything is sent; leaving, for whatever reason
and at any point, tells the instances to stop and gives the subscription back.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from moonpool.bus import Bus, NoResponder, RequestTimeout, Subscription
from moonpool.clock import Clock
from moonpool.messages.codec import MalformedMessage, decode, encode
from moonpool.messages.decode import ReserveReply
from moonpool.messages.errors import Blame, ErrorInfo, MoonpoolError
from moonpool.messages.ids import InstanceId
from moonpool.messages.plan import PlanReply, PlanRequest
from moonpool.messages.prefill import CancelReply, CancelRequest, SubmitReply
from moonpool.messages.subjects import Subjects
from moonpool.messages.tokens import TokenEvent
from services.gateway.background import Background
from services.gateway.core.account import Account
from services.gateway.core.effects import (
    DECODE,
    PREFILL,
    AskPing,
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
from services.gateway.core.job import Job
from services.gateway.core.lifecycle import Life, Limits

log = logging.getLogger(__name__)

PLAN_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 5.0  # reserve, submit
PING_TIMEOUT_S = 1.0
CANCEL_TIMEOUT_S = 2.0
EVENTS_MAX = (
    4096  # token events that wait for a slow loop; more are lost, seen as a gap, and redone
)

M = TypeVar("M", bound=msgspec.Struct)
Report = Callable[[], list[Effect]]  # what an answer means to the life, told when it is its turn


class Mesh:
    """What all flights share."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, background: Background) -> None:
        self.bus = bus
        self.subjects = subjects
        self.clock = clock
        self.background = background
        self.flights: set[Flight] = set()
        self.plan_sent: Callable[[float], None] = lambda seconds: None
        self.failed_over: Callable[[str], None] = lambda cause: None
        self.doubt: Callable[[str], None] = lambda instance: None

    def gone(self, instance: str) -> None:
        """An instance left or started anew: whoever waits for it need not wait longer."""
        for flight in list(self.flights):
            flight.gone(InstanceId(instance))

    def doubted(self, instance: str) -> None:
        """An instance drains or fell silent: prompts that wait for it may go elsewhere."""
        for flight in list(self.flights):
            flight.doubted(InstanceId(instance))

    async def ask(
        self, subject: str, message: msgspec.Struct, kind: type[M], timeout_s: float
    ) -> M:
        """Raises MoonpoolError."""
        return decode(await self.bus.request(subject, encode(message), timeout_s), kind)

    def stats(self) -> dict[str, int]:
        return {"flights": len(self.flights)}


class Flight:
    def __init__(self, mesh: Mesh, job: Job, limits: Limits, account: Account) -> None:
        self._mesh = mesh
        self._account = account
        self.life = Life(job, limits)
        self.end: End | None = None
        account.facts = self.life.facts
        self._subscription: Subscription | None = None
        self._arrived: deque[TokenEvent | Report] = deque()
        self._wake = asyncio.Event()
        self._todo: deque[Effect] = deque()
        self._given: list[Give] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._lost_events = 0

    async def __aenter__(self) -> Self:
        subject = self._mesh.subjects.tokens(self.life.job.request)
        self._subscription = await self._mesh.bus.subscribe(
            subject, self._on_event, queue_max=EVENTS_MAX
        )
        self._mesh.flights.add(self)
        self._todo.extend(self.life.start())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing here waits, so that being cancelled once more cannot leave anything behind."""
        self.stop("cancelled")
        self._mesh.flights.discard(self)
        for task in self._asking:
            task.cancel()
        if self._subscription is not None:
            self._mesh.background.spawn(self._subscription.close(), "unsubscribe")

    async def next(self) -> list[Give]:
        """Tokens that came since the last call, as soon as there are any. Empty when it is over:
        then `end` says how. Cancellable; nothing is lost."""
        while not self._given and self.end is None:
            if self._todo:
                await self._do(self._todo.popleft())
            else:
                await self._wait()
        given, self._given = self._given, []
        return given

    def stop(self, finish: str) -> None:
        """We end it: a stop string ("stop"), or nobody reads any more ("cancelled")."""
        self._todo.clear()
        self._apply(self.life.stop(finish))

    def gone(self, instance: InstanceId) -> None:
        self._report(lambda: self.life.gone(instance, self._now()))

    def doubted(self, instance: InstanceId) -> None:
        self._report(lambda: self.life.doubted(instance, self._now()))

    def stats(self) -> dict[str, int]:
        return {"waiting": len(self._arrived), "asking": len(self._asking)}

    # -- turns ------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._mesh.clock.now()

    async def _wait(self) -> None:
        """Until something came or it is time to look."""
        now_s = self._now()
        left_s = self.life.wake_at_s(now_s) - now_s
        if left_s <= 0.0:
            self._apply(self.life.tick(now_s))
        elif not self._arrived:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
        while self._arrived and not self._todo and self.end is None:
            each = self._arrived.popleft()
            if isinstance(each, TokenEvent):
                self._apply(self.life.token(each, self._now()))
            else:
                self._apply(each())

    def _apply(self, effects: list[Effect]) -> None:
        """Takes in at once what needs no waiting; the rest waits its turn."""
        facts = self.life.facts
        for effect in effects:
            match effect:
                case Give():
                    self._given.append(effect)
                case End():
                    self.end = effect
                case SendCancel():
                    self._cancel(effect)
                case AskPing(door, attempt):
                    self._start(self._ping(door, attempt), "ping")
                case AskReplan(message):
                    self._start(self._replan(message), "replan")
                case AskWithdraw(door, attempt):
                    self._start(self._withdraw(door, attempt), "withdraw")
                case AskPlan() if facts.failures and facts.accepted and not effect.delay_s:
                    self._mesh.failed_over(facts.failures[-1])
                    self._todo.append(effect)
                case _:
                    self._todo.append(effect)

    async def _do(self, effect: Effect) -> None:
        match effect:
            case AskPlan():
                await self._plan(effect)
            case AskReserve(instance, message):
                subject = self._mesh.subjects.decode(instance, "reserve")
                reply = await self._ask(subject, message, ReserveReply, instance)
                self._apply(self.life.reserved(reply, self._now()))
            case AskSubmit():
                self._start(self._submit(effect), "submit")

    # -- asking -----------------------------------------------------------------------------

    async def _plan(self, effect: AskPlan) -> None:
        if effect.delay_s:
            await self._mesh.clock.sleep(min(effect.delay_s, self._left_s()))
        started_s = self._now()
        waited_s = self._account.plan_sent(started_s)
        if waited_s is not None:
            self._mesh.plan_sent(waited_s)
        if self._left_s() <= 0.0:
            self._apply(self.life.tick(started_s))
            return
        reply = await self._ask_conductor(effect.message)
        self._account.planned(self._now() - started_s, self._now())
        self._apply(self.life.planned(reply, self._now()))

    async def _ask_conductor(self, message: PlanRequest) -> PlanReply | ErrorInfo:
        try:
            timeout_s = max(0.01, min(PLAN_TIMEOUT_S, self._left_s()))
            return await self._mesh.ask(self._mesh.subjects.plan, message, PlanReply, timeout_s)
        except MoonpoolError as error:
            told = f"no conductor answers: {error.message}"
            return ErrorInfo("no_conductor", Blame.PEER, told, 1.0)

    async def _replan(self, message: PlanRequest) -> None:
        reply, attempt = await self._ask_conductor(message), message.attempt
        self._report(lambda: self.life.replanned(reply, attempt, self._now()))

    async def _withdraw(self, door: Door, attempt: int) -> None:
        """An answer that does not come counts as a no: then the prompt may have begun."""
        message = CancelRequest(self.life.job.request, attempt, only_waiting=True)
        done = False
        try:
            subject = self._subject(door, "cancel")
            answer = await self._mesh.bus.request(subject, encode(message), CANCEL_TIMEOUT_S)
            done = decode(answer, CancelReply).ended if answer else True
        except MoonpoolError as error:
            log.info("not withdrawn request=%s error=%s", message.request, error)
        self._report(lambda: self.life.withdrawn(done, attempt, self._now()))

    async def _submit(self, effect: AskSubmit) -> None:
        subject = self._mesh.subjects.prefill(effect.instance, "submit")
        reply = await self._ask(subject, effect.message, SubmitReply, effect.instance)
        attempt = effect.message.attempt

        def told() -> list[Effect]:
            current = self.life.attempt == attempt
            return self.life.submitted(reply, self._now()) if current else []

        self._report(told)

    async def _ask(
        self, subject: str, message: msgspec.Struct, kind: type[M], instance: str
    ) -> M | ErrorInfo:
        """The reply, or why there is none."""
        try:
            timeout_s = max(0.01, min(ASK_TIMEOUT_S, self._left_s()))
            return await self._mesh.ask(subject, message, kind, timeout_s)
        except MoonpoolError as error:
            if isinstance(error, NoResponder):
                self._mesh.doubt(instance)
            return error.info()

    async def _ping(self, door: Door, attempt: int) -> None:
        lost: ErrorInfo | None = None
        try:
            await self._mesh.bus.request(self._subject(door, "ping"), b"", PING_TIMEOUT_S)
        except MoonpoolError as error:
            lost = error.info()
            if isinstance(error, NoResponder):
                self._mesh.doubt(door.instance)
        self._report(lambda: self.life.ponged(door, attempt, lost, self._now()))

    def _cancel(self, effect: SendCancel) -> None:
        message = CancelRequest(self.life.job.request, effect.attempt, effect.writer_stopped)
        subject = self._subject(effect.door, "cancel")
        self._mesh.background.spawn(
            _send_cancel(self._mesh.bus, subject, encode(message)), "cancel"
        )

    def _subject(self, door: Door, verb: str) -> str:
        subjects = self._mesh.subjects
        assert door.side in (PREFILL, DECODE)
        by_side = subjects.prefill if door.side == PREFILL else subjects.decode
        return by_side(door.instance, verb)

    def _left_s(self) -> float:
        return self.life.limits.deadline_s - self._now()

    # -- arriving ---------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _report(self, told: Report) -> None:
        self._arrived.append(told)
        self._wake.set()

    async def _on_event(self, subject: str, payload: bytes) -> None:
        try:
            event = decode(payload, TokenEvent)
        except MalformedMessage as error:
            log.warning("not a token event on %s: %s", subject, error)
            return
        if len(self._arrived) >= EVENTS_MAX:
            self._lost_events += 1
            return
        self._arrived.append(event)
        self._wake.set()


async def _send_cancel(bus: Bus, subject: str, payload: bytes) -> None:
    """Twice when slow: what is not told frees itself at its deadline, which may be minutes away."""
    for _ in range(2):
        try:
            await bus.request(subject, payload, CANCEL_TIMEOUT_S)
            return
        except NoResponder:
            return  # dead: nothing is held there
        except RequestTimeout:
            continue
