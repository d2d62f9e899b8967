"""A mesh at the message seam: conductor, prefills and decodes that follow a script."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moonpool.bus import Endpoint, MemoryBroker, MemoryBus, Service
from moonpool.messages.codec import decode, encode
from moonpool.messages.decode import ReserveReply, ReserveRequest
from moonpool.messages.errors import Blame, ErrorInfo
from moonpool.messages.ids import InstanceId
from moonpool.messages.plan import Plan, PlanReply, PlanRequest
from moonpool.messages.prefill import CancelRequest, SubmitReply, SubmitRequest
from moonpool.messages.registry import Heartbeat, ModelRecord, Registration
from moonpool.messages.subjects import Subjects
from moonpool.messages.tokens import Timings, TokenEvent, TokenLogprobs

MODEL = "tiny-chat"
FINGERPRINT = bytes(range(32))
BLOCK_TOKENS = 16
CONTEXT_TOKENS = 512
BEAT_S = 0.5

RECORD = ModelRecord(
    model=MODEL,
    fingerprint=FINGERPRINT,
    identity="{}",
    block_tokens=BLOCK_TOKENS,
    block_bytes=1024,
    layers=1,
    context_tokens=CONTEXT_TOKENS,
    dtype="float32",
)


def refusal(code: str, blame: Blame = Blame.CAPACITY, retry_after_s: float = 0.0) -> ErrorInfo:
    return ErrorInfo(code, blame, f"refused: {code}", retry_after_s, elsewhere=True)


@dataclass
class Instance:
    """One scripted prefill, decode or colocated instance."""

    id: str
    role: str
    epoch: str = "1"
    refuse: ErrorInfo | None = None  # whatever it is asked
    dies_before: int = -1  # index of the output token that it never gives; -1: never
    fails_before: int = -1  # there it sends an error event instead
    stalls_before: int = -1  # there it falls silent, and still answers pings
    failure: ErrorInfo = field(default_factory=lambda: refusal("preempted"))
    repeats: bool = False  # every event goes out twice
    token_wait_s: float = 0.0
    service: Service | None = None
    submits: list[SubmitRequest] = field(default_factory=list)
    reserves: list[ReserveRequest] = field(default_factory=list)
    cancels: list[CancelRequest] = field(default_factory=list)

    def trouble(self, index: int) -> bool:
        return index in (self.dies_before, self.fails_before, self.stalls_before)


class ScriptedMesh:
    """`answer` are the tokens of every answer; the last one ends it (finish "stop")."""

    def __init__(self, answer: list[int]) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.subjects = Subjects()
        self.answer = answer
        self.logprobs: Callable[[int], TokenLogprobs] | None = None
        self.cached: dict[str, int] = {}
        self.instances: dict[str, Instance] = {}
        self.plans: list[PlanRequest] = []
        self.plan_refusal: ErrorInfo | None = None
        self.conductor: Service | None = None
        self._work: set[asyncio.Task[None]] = set()

    async def start(self, *instances: Instance) -> None:
        endpoint = Endpoint("plan", self.subjects.plan, self._on_plan, queue_group="conductor")
        self.conductor = await self.bus.serve("conductor", "c1", "1", [endpoint])
        for instance in instances:
            await self.join(instance)
        self._spawn(self._beat())

    async def close(self) -> None:
        for task in list(self._work):
            task.cancel()
        if self._work:
            await asyncio.wait(self._work)
        await self.bus.close()

    async def join(self, instance: Instance) -> None:
        def endpoint(side: str, verb: str, handler: Callable[..., object]) -> Endpoint:
            async def handle(payload: bytes) -> bytes:
                return await handler(instance, payload)  # type: ignore[misc,no-any-return]

            subject = getattr(self.subjects, side)(instance.id, verb)
            return Endpoint(f"{side}-{verb}", subject, handle)

        side = "decode" if instance.role == "decode" else "prefill"
        endpoints = [
            endpoint(side, "ping", self._on_ping),
            endpoint(side, "cancel", self._on_cancel),
        ]
        if side == "decode":
            endpoints.append(endpoint(side, "reserve", self._on_reserve))
        else:
            endpoints.append(endpoint(side, "submit", self._on_submit))
        self.instances[instance.id] = instance
        instance.service = await self.bus.serve(instance.role, instance.id, "1", endpoints)
        await self.beat_once()

    async def kill(self, instance: Instance) -> None:
        """Gone without a word: its subjects have no responder from now on."""
        service, instance.service = instance.service, None
        if service is not None:
            await service.close()

    async def beat_once(self) -> None:
        await self._beat_of("c1", "conductor", None, "1")
        for instance in self.instances.values():
            if instance.service is not None:
                await self._beat_of(instance.id, instance.role, RECORD, instance.epoch)

    # -- roles ------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await self.beat_once()
            await asyncio.sleep(BEAT_S)

    async def _beat_of(self, id: str, role: str, model: ModelRecord | None, epoch: str) -> None:
        who = Registration(id, role, epoch, 1_700_000_000.0, "host", "1", model=model)
        await self.bus.publish(self.subjects.heartbeat, encode(Heartbeat(who, "ready")))

    async def _on_plan(self, payload: bytes) -> bytes:
        request = decode(payload, PlanRequest)
        self.plans.append(request)
        return encode(self._plan(request))

    def _plan(self, request: PlanRequest) -> PlanReply:
        if self.plan_refusal is not None:
            return PlanReply(refusal=self.plan_refusal)
        usable = {
            role: [
                i.id
                for i in self.instances.values()
                if i.role == role and i.id not in request.exclude
            ]
            for role in ("prefill", "decode", "colocated")
        }
        if usable["colocated"]:
            id = InstanceId(usable["colocated"][0])
            return PlanReply(plan=Plan(id, id, predicted_ttft_s=0.1))
        if usable["prefill"] and usable["decode"]:
            pair = InstanceId(usable["prefill"][0]), InstanceId(usable["decode"][0])
            return PlanReply(plan=Plan(*pair, predicted_ttft_s=0.1))
        return PlanReply(refusal=refusal("no_instances", Blame.PEER))

    async def _on_ping(self, instance: Instance, payload: bytes) -> bytes:
        return b""

    async def _on_cancel(self, instance: Instance, payload: bytes) -> bytes:
        instance.cancels.append(decode(payload, CancelRequest))
        return b""

    async def _on_reserve(self, instance: Instance, payload: bytes) -> bytes:
        instance.reserves.append(decode(payload, ReserveRequest))
        if instance.refuse is not None:
            return encode(ReserveReply(refusal=instance.refuse))
        return encode(ReserveReply(decode=instance.id, blocks=(1,)))

    async def _on_submit(self, instance: Instance, payload: bytes) -> bytes:
        request = decode(payload, SubmitRequest)
        instance.submits.append(request)
        if instance.refuse is not None:
            return encode(SubmitReply(refusal=instance.refuse))
        self._spawn(self._give(instance, request))
        return encode(SubmitReply())

    # -- answers ----------------------------------------------------------------------------

    async def _give(self, prefill: Instance, request: SubmitRequest) -> None:
        start = len(np.frombuffer(request.tokens, "<i4")) - request.output_start
        decode_side = self.instances[request.plan.decode]
        for index in range(start, len(self.answer)):
            source = prefill if index == start else decode_side
            cancels = prefill.cancels + decode_side.cancels
            if any((c.request, c.attempt) == (request.request, request.attempt) for c in cancels):
                return
            if source.trouble(index):
                await self._misbehave(source, request, index)
                return
            if source.token_wait_s:
                await asyncio.sleep(source.token_wait_s)
            finish = self._finish(index, request)
            await self._say(source, request, index, finish, first=index == start)
            if finish:
                return

    def _finish(self, index: int, request: SubmitRequest) -> str:
        if index + 1 == len(self.answer):
            return "stop"
        return "length" if index + 1 >= request.sampling.max_tokens else ""

    async def _say(
        self, source: Instance, request: SubmitRequest, index: int, finish: str, *, first: bool
    ) -> None:
        token = self.answer[index]
        event = TokenEvent(
            request=request.request,
            attempt=request.attempt,
            index=index,
            source=InstanceId(source.id),
            tokens=(token,),
            finish=finish,
            logprobs=(self.logprobs(token),) if self.logprobs is not None else (),
            cached_tokens=self.cached if first else None,
            timings=Timings(queue_s=0.01, compute_s=0.02) if first else None,
        )
        for _ in range(2 if source.repeats else 1):
            await self.bus.publish(self.subjects.tokens(request.request), encode(event))

    async def _misbehave(self, source: Instance, request: SubmitRequest, index: int) -> None:
        if index == source.dies_before:
            await self.kill(source)
        elif index == source.fails_before:
            event = TokenEvent(
                request=request.request,
                attempt=request.attempt,
                index=index,
                source=InstanceId(source.id),
                finish="error",
                error=source.failure,
            )
            await self.bus.publish(self.subjects.tokens(request.request), encode(event))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
