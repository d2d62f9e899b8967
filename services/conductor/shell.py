"""The conductor as a service: what comes in over the bus goes into the core, with the time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moonpool.bus import Endpoint, Subscription
from moonpool.messages.advice import AdviceRequest
from moonpool.messages.codec import MalformedMessage, decode, encode
from moonpool.messages.events import KvEvents
from moonpool.messages.ids import OwnerId
from moonpool.messages.load import LoadReport
from moonpool.messages.plan import PlanRequest
from moonpool.messages.registry import Goodbye, Heartbeat, Registration
from moonpool.messages.status import StatusRequest
from moonpool.messages.where import WhereRequest
from moonpool.runtime import Heart, ServiceContext
from moonpool.settings import ConductorSettings
from moonpool.telemetry import names
from services.conductor.advice import Advisor
from services.conductor.balancing import BalanceKeeper
from services.conductor.core import ConductorCore, Policy
from services.conductor.fetcher import SnapshotFetcher
from services.conductor.fleet import OWNER_ROLES, Change
from services.conductor.gauges import Gauges
from services.conductor.holdings import StreamState
from services.conductor.prober import Prober
from services.conductor.switching import RoleKeeper
from services.conductor.where import where

QUEUE_GROUP = "conductor"
WARM_UP_S = 1.25  # a little over one heartbeat: then everybody who lives has been heard
_FOLLOW_WAIT_S = 3.0  # for snapshots, before the first plan is given
_TICK_S = 0.25
_PROBE_AFTER_S = 1.5  # of silence: one heartbeat was missed
_SWEEP_KEYS = 20_000  # looked at per turn of the event loop: some milliseconds
_CHECK_EVERY_TICKS = 40
_EVENTS_QUEUE_MAX = 8192

Context = ServiceContext[ConductorSettings]


class Conductor:
    """Handlers around one core. All run on the event loop; none waits inside the core."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._clock = context.clock
        policy = Policy(
            slo_ttft_s=settings.slo_ttft_s,
            slo_tbt_s=settings.slo_tbt_s,
            suspect_after_s=settings.suspect_after_s,
            dead_after_s=settings.dead_after_s,
            scheduling=settings.scheduling,
            admission=settings.admission,
            balancing_threshold=settings.balancing_threshold,
            balancing=settings.balancing,
        )
        self.core = ConductorCore(policy, rotation=int(context.epoch[:6], 16))
        self.fetcher = SnapshotFetcher(
            context.bus,
            context.subjects,
            context.clock,
            self.core.holdings,
            self._nobody_serves,
            context.epoch,
        )
        self.prober = Prober(context.bus, context.subjects, self._nobody_serves)
        self.advisor = Advisor(self.core, context.clock.now())
        self.roles = RoleKeeper(
            context.bus,
            context.subjects,
            context.clock,
            self.core.fleet,
            self.advisor,
            context.id,
            context.log,
        )
        self.balance = BalanceKeeper(
            context.bus,
            context.subjects,
            context.clock,
            self.core,
            context.id,
            context.log,
            context.metrics,
        )
        self._gauges = Gauges(context.metrics)
        self._resyncs = context.metrics.counters(names.INDEX_RESYNCS)
        self._plan_seconds = context.metrics.histogram(names.PLAN_SECONDS)
        self._predicted = context.metrics.histogram(names.PREDICTED_TTFT_SECONDS)
        self._plans = context.metrics.counters(names.PLANS)
        self.malformed = 0

    # -- what comes in

    async def subscribe(self) -> list[Subscription]:
        """Follows the registry, loads and block events."""
        bus, subjects = self._context.bus, self._context.subjects
        return [
            await bus.subscribe(subjects.heartbeat, self._on_heartbeat, queue_max=4096),
            await bus.subscribe(subjects.goodbye, self._on_goodbye),
            await bus.subscribe(subjects.load(), self._on_load, queue_max=4096),
            await bus.subscribe(subjects.kv_events(), self._on_events, queue_max=_EVENTS_QUEUE_MAX),
        ]

    def endpoints(self) -> list[Endpoint]:
        subjects = self._context.subjects
        return [
            Endpoint("plan", subjects.plan, self._on_plan, QUEUE_GROUP),
            Endpoint("hello", subjects.hello, self._on_hello, QUEUE_GROUP),
            Endpoint("where", subjects.where, self._on_where, QUEUE_GROUP),
            Endpoint("advise", subjects.advise, self._on_advise, QUEUE_GROUP),
            Endpoint("status", subjects.conductor_status, self._on_status, QUEUE_GROUP),
        ]

    async def _on_heartbeat(self, subject: str, payload: bytes) -> None:
        try:
            beat = decode(payload, Heartbeat)
        except MalformedMessage:
            self.malformed += 1
            return
        self._tell(self.core.heartbeat(beat, self._clock.now()))

    async def _on_goodbye(self, subject: str, payload: bytes) -> None:
        try:
            goodbye = decode(payload, Goodbye)
        except MalformedMessage:
            self.malformed += 1
            return
        self._tell(self.core.goodbye(goodbye))

    async def _on_load(self, subject: str, payload: bytes) -> None:
        try:
            report = decode(payload, LoadReport)
        except MalformedMessage:
            self.malformed += 1
            return
        self._tell(self.core.load(report, self._clock.now()))

    async def _on_events(self, subject: str, payload: bytes) -> None:
        try:
            events = decode(payload, KvEvents)
        except MalformedMessage:
            self.malformed += 1
            return
        if self.core.events(events):
            self._resyncs.labels("gap").inc()
            self.fetcher.wake()

    async def _on_plan(self, payload: bytes) -> bytes:
        request = decode(payload, PlanRequest)
        now_s = self._clock.now()
        if request.probe:
            return encode(self.core.plan(request, now_s))
        if request.exclude:  # somebody had trouble with them: find out now, not in seconds
            members = (self.core.fleet.get(id) for id in request.exclude)
            self.prober.ask(member for member in members if member)
        reply = self.core.plan(request, now_s)
        self.advisor.note(request, reply, now_s)
        self._plan_seconds.observe(self._clock.now() - now_s)
        if reply.plan:
            self._predicted.observe(reply.plan.predicted_ttft_s)
        self._plans.labels(reply.refusal.code if reply.refusal else "ok").inc()
        return encode(reply)

    async def _on_hello(self, payload: bytes) -> bytes:
        registration = decode(payload, Registration)
        reply = self.core.hello(registration, self._clock.now())
        if reply.refusal:
            self._context.log.warning(
                "refused to register",
                extra={"member": registration.id, "reason": reply.refusal.message},
            )
        return encode(reply)

    async def _on_status(self, payload: bytes) -> bytes:
        decode(payload, StatusRequest)
        now_s = self._clock.now()
        uptime_s = now_s - self._context.started_s
        return encode(self.core.status(self._context.id, uptime_s, now_s))

    async def _on_where(self, payload: bytes) -> bytes:
        request = decode(payload, WhereRequest)
        return encode(where(request, self.core.fleet, self.core.holdings, self._context.id))

    async def _on_advise(self, payload: bytes) -> bytes:
        decode(payload, AdviceRequest)
        return encode(self.advisor.advise(self._clock.now(), self._context.id))

    # -- what time brings

    async def keep_house(self) -> None:
        """Ticks until cancelled: silence, probes, sweeping, metrics."""
        ticks = 0
        while True:
            await self._clock.sleep(_TICK_S)
            now_s = self._clock.now()
            for change in self.core.tick(now_s):
                self._tell(change)
            silent = self.core.fleet.silent(now_s, _PROBE_AFTER_S)
            self.prober.ask(member for member in silent if member.role in OWNER_ROLES)
            while not self.core.holdings.index.sweep(_SWEEP_KEYS):
                await self._clock.sleep(0)
            self._gauges.show(self.core)
            ticks += 1
            if ticks % _CHECK_EVERY_TICKS == 0:
                self.core.check()

    async def followed(self) -> None:
        """Returns once every owner known is followed, or after a bounded wait."""
        until_s = self._clock.now() + _FOLLOW_WAIT_S
        holdings = self.core.holdings
        while self._clock.now() < until_s:
            states = (holdings.state(owner) for owner in holdings.owners())
            if all(state is StreamState.FOLLOWING for state in states):
                return
            await self._clock.sleep(0.05)

    def _nobody_serves(self, id: str, epoch: str) -> None:
        """Nobody serves the subject of this life. One that is just starting may not serve yet; of
        one that did, or that fell silent, it is the proof that it died."""
        member = self.core.fleet.get(id)
        if member is None or member.epoch != epoch:
            return
        served = self.core.holdings.state(OwnerId(id)) is StreamState.FOLLOWING
        silent_s = self._clock.now() - member.heard_s
        if served or silent_s >= _PROBE_AFTER_S:
            self._tell(self.core.proven_dead(id, epoch))

    def _tell(self, change: Change | None) -> None:
        """One log line per change; whoever came or came back may want its snapshot read."""
        if change is None:
            return
        member = change.member
        self._context.log.log(
            30 if change.kind == "suspect" else 20,
            "member %s",
            change.kind,
            extra={"member": member.id, "role": member.role, "mismatch": member.mismatch},
        )
        if change.kind in ("joined", "restarted"):
            if member.role in OWNER_ROLES:
                self._resyncs.labels(change.kind).inc()
            self.fetcher.wake()

    def stats(self) -> dict[str, int]:
        return {
            **self.core.stats(),
            **self.fetcher.stats(),
            **self.prober.stats(),
            **self.roles.stats(),
            **self.balance.stats(),
            "malformed": self.malformed,
        }


@asynccontextmanager
async def running_conductor(
    context: Context, warm_up_s: float = WARM_UP_S
) -> AsyncIterator[Conductor]:
    """A conductor that plans while inside. It listens for one heartbeat's time and reads what
    owners hold before it answers: a restarted one never says that a living model is unknown."""
    conductor = Conductor(context)
    subscriptions = await conductor.subscribe()
    try:
        async with (
            asyncio.TaskGroup() as group,
            Heart(
                context.bus,
                context.subjects,
                context.clock,
                context.registration(),
                state_file=context.settings.state_file,
            ) as heart,
        ):
            tasks = [
                group.create_task(conductor.fetcher.run(), name="snapshots"),
                group.create_task(conductor.prober.run(), name="probes"),
                group.create_task(conductor.keep_house(), name="house"),
            ]
            if context.settings.role_switching:
                tasks.append(group.create_task(conductor.roles.run(), name="roles"))
            if context.settings.balancing:
                tasks.append(group.create_task(conductor.balance.run(), name="balance"))
            try:
                await context.clock.sleep(warm_up_s)
                await conductor.followed()
                service = await context.serve(conductor.endpoints())
                heart.set_state("ready")
                context.log.info("ready", extra=conductor.core.fleet.stats())
                try:
                    yield conductor
                finally:
                    await service.close()
            finally:
                for task in tasks:
                    task.cancel()
    finally:
        for subscription in subscriptions:
            await subscription.close()


async def serve(context: Context) -> None:
    """Serves until cancelled."""
    async with running_conductor(context):
        await asyncio.Event().wait()
