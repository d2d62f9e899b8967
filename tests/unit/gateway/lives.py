"""Builders for lives of requests, and what tests say to them."""

from typing import TypeVar

import numpy as np

from moonpool.kv import block_keys
from moonpool.messages.decode import ReserveReply
from moonpool.messages.errors import Blame, ErrorInfo
from moonpool.messages.ids import InstanceId, RequestId, TenantId
from moonpool.messages.plan import Plan, PlanReply
from moonpool.messages.prefill import SubmitReply
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.tokens import TokenEvent
from services.gateway.core.effects import AskReserve, AskSubmit, Effect, Give
from services.gateway.core.job import Job
from services.gateway.core.lifecycle import Life, Limits, Stage

ROOT, BLOCK_TOKENS = b"r" * 16, 16
PROMPT = np.arange(20, dtype="<i4")
ANSWER = tuple(range(100, 130))
P1, D1, P2, D2, W1 = map(InstanceId, ("p1", "d1", "p2", "d2", "w1"))
GONE = ErrorInfo("no_responder", Blame.PEER, "gone", elsewhere=True)
SLOW = ErrorInfo("request_timeout", Blame.PEER, "slow", elsewhere=True)
FULL = ErrorInfo("kv_space", Blame.CAPACITY, "full", 3.0, elsewhere=True)
NOBODY = ErrorInfo("no_instances", Blame.PEER, "nobody")

E = TypeVar("E")


def make_life(**limits: float) -> Life:
    job = Job(
        request=RequestId("r1"),
        tenant=TenantId("public"),
        model="m",
        fingerprint=b"f",
        root=ROOT,
        block_tokens=BLOCK_TOKENS,
        prompt=PROMPT,
        keys=tuple(block_keys(ROOT, PROMPT, BLOCK_TOKENS)),
        sampling=SamplingParams(max_tokens=30, seed=7),
    )
    return Life(job, Limits(limits.get("deadline_s", 600.0), 20.0, int(limits.get("attempts", 4))))


def one(effects: list[Effect], kind: type[E]) -> E:
    [found] = [effect for effect in effects if isinstance(effect, kind)]
    return found


def plan(prefill: InstanceId = P1, decode: InstanceId = D1) -> PlanReply:
    return PlanReply(plan=Plan(prefill, decode))


def event(
    index: int, count: int = 1, source: InstanceId = D1, attempt: int = 0, finish: str = ""
) -> TokenEvent:
    tokens = ANSWER[index : index + count]
    return TokenEvent(RequestId("r1"), attempt, index, source, tokens, finish)


def failed(code: str, source: InstanceId, attempt: int = 0, elsewhere: bool = True) -> TokenEvent:
    info = ErrorInfo(code, Blame.PEER, code, elsewhere=elsewhere)
    return TokenEvent(RequestId("r1"), attempt, 0, source, finish="error", error=info)


def streaming(life: Life, now_s: float = 0.0, **names: InstanceId) -> AskSubmit:
    """Plans, reserves and submits."""
    if life.attempt == 0:
        life.start()
    effects = life.planned(plan(**names), now_s)
    if not any(isinstance(effect, AskSubmit) for effect in effects):
        one(effects, AskReserve)
        effects = life.reserved(ReserveReply(decode="d"), now_s)
    submit = one(effects, AskSubmit)
    assert life.submitted(SubmitReply(), now_s) == []
    assert life.stage is Stage.STREAM
    return submit


def given(effects: list[Effect]) -> list[int]:
    return [token for e in effects if isinstance(e, Give) for token in e.tokens]
