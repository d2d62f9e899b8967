"""Instances in this process, over the in-memory bus, and a hand that plays gateway and conductor
for them: it says where each request runs, and collects the answer."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moonpool.bus import Bus, Endpoint, MemoryBroker, MemoryBus
from moonpool.instance.start import run_instance
from moonpool.kv import block_keys, chain_root, pack_keys
from moonpool.messages import InstanceId, MoonpoolError, NodeId, RequestId, Subjects, TenantId
from moonpool.messages.codec import decode, encode
from moonpool.messages.decode import ReserveReply, ReserveRequest
from moonpool.messages.plan import Plan, PrefixRun
from moonpool.messages.prefill import CancelRequest, SubmitReply, SubmitRequest
from moonpool.messages.registry import Heartbeat, HelloReply
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.tokens import TokenEvent
from moonpool.runtime import new_context
from moonpool.settings import WorkerSettings
from tests.support.until import until

TENANT = TenantId("tester")
_numbers = itertools.count(1)


@dataclass
class Answer:
    """What came back for one request."""

    events: list[TokenEvent] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.tokens]

    @property
    def finish(self) -> str:
        return self.events[-1].finish if self.events else ""

    @property
    def cached(self) -> dict[str, int]:
        return next((e.cached_tokens for e in self.events if e.cached_tokens is not None), {})


class Hand:
    """Plays the gateway on one bus, and, when nobody else does, the conductor."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.subjects = Subjects()
        self.members: dict[str, Heartbeat] = {}

    async def start(self, *, conduct: bool = True) -> None:
        async def accept(_: bytes) -> bytes:
            return encode(HelloReply())

        async def note(_: str, payload: bytes) -> None:
            beat = decode(payload, Heartbeat)
            self.members[beat.registration.id] = beat

        if conduct:
            hello = Endpoint("hello", self.subjects.hello, accept)
            await self.bus.serve("conductor", "hand", "0", [hello])
        await self.bus.subscribe(self.subjects.heartbeat, note)

    @property
    def fingerprint(self) -> bytes:
        model = next(b.registration.model for b in self.members.values() if b.registration.model)
        return model.fingerprint

    @property
    def block_tokens(self) -> int:
        model = next(b.registration.model for b in self.members.values() if b.registration.model)
        return model.block_tokens

    @property
    def root(self) -> bytes:
        return chain_root(self.fingerprint, b"salt")

    async def ask(self, prompt: Sequence[int], **how: Any) -> Answer:
        """Runs one request to its end; `how` as `begin` takes it."""
        answer, _ = await self.begin(prompt, **how)
        await until(lambda: bool(answer.finish), how.get("deadline_s", 30.0))
        return answer

    async def begin(
        self,
        prompt: Sequence[int],
        *,
        prefill: str,
        decode_id: str,
        runs: Sequence[PrefixRun] = (),
        store: str | None = None,
        sampling: SamplingParams | None = None,
        output_start: int | None = None,
        attempt: int = 0,
        deadline_s: float = 30.0,
    ) -> tuple[Answer, RequestId]:
        """Sends one request on its way."""
        request = RequestId(f"r{next(_numbers)}")
        sampling = sampling or SamplingParams(temperature=0, max_tokens=8)
        answer = Answer()

        async def collect(_: str, payload: bytes) -> None:
            answer.events.append(decode(payload, TokenEvent))

        await self.bus.subscribe(self.subjects.tokens(request), collect)
        keys = pack_keys(block_keys(self.root, list(prompt), self.block_tokens))
        reserve = ReserveRequest(
            request,
            attempt,
            TENANT,
            self.fingerprint,
            keys,
            len(prompt),
            sampling.max_tokens,
            deadline_s,
        )
        plan = Plan(
            InstanceId(prefill),
            InstanceId(decode_id),
            tuple(runs),
            NodeId(store) if store else None,
        )
        submit = SubmitRequest(
            request=request,
            attempt=attempt,
            tenant=TENANT,
            model="",
            fingerprint=self.fingerprint,
            root=self.root,
            keys=keys,
            tokens=np.asarray(prompt, "<i4").tobytes(),
            output_start=len(prompt) if output_start is None else output_start,
            sampling=sampling,
            plan=plan,
            reservation=None if prefill == decode_id else await self._reserve(decode_id, reserve),
            deadline_s=deadline_s,
        )
        subject = self.subjects.prefill(prefill, "submit")
        reply = decode(await self.bus.request(subject, encode(submit), 5.0), SubmitReply)
        assert reply.refusal is None, reply.refusal
        return answer, request

    async def _reserve(self, decode_id: str, reserve: ReserveRequest) -> ReserveReply:
        subject = self.subjects.decode(decode_id, "reserve")
        reply = decode(await self.bus.request(subject, encode(reserve), 5.0), ReserveReply)
        assert reply.refusal is None, reply.refusal
        return reply

    async def cancel(self, request: RequestId, *, prefill: str, decode_id: str) -> None:
        payload = encode(CancelRequest(request, 0))
        for subject in (
            self.subjects.prefill(prefill, "cancel"),
            self.subjects.decode(decode_id, "cancel"),
        ):
            with contextlib.suppress(MoonpoolError):
                await self.bus.request(subject, payload, 5.0)


@contextlib.asynccontextmanager
async def instances(
    model: Path, run_dir: Path, *, pool_blocks: int = 64, block_bytes: int = 16384, **roles: str
) -> AsyncIterator[Hand]:
    """`roles` maps instance id to role. All are ready when entered; all are gone afterwards."""
    broker = MemoryBroker()
    hand = Hand(MemoryBus(broker))
    await hand.start()
    tasks = []
    for id, role in roles.items():
        settings = WorkerSettings(
            id=id,
            model=str(model),
            device="cpu",
            threads=1,
            block_tokens=16,
            chunk_tokens=32,
            kv_pool_bytes=pool_blocks * block_bytes,
            run_dir=str(run_dir),
            host_id="here",
        )
        context = new_context(role, settings, MemoryBus(broker), id=id)
        tasks.append(asyncio.create_task(run_instance(context), name=id))
    try:
        await until(lambda: len(hand.members) == len(roles) or any(t.done() for t in tasks), 60.0)
        for task in tasks:
            if task.done():
                task.result()
        yield hand
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
