"""Whole decisions on a mesh of a hundred instances, with prompts of 16k tokens."""

import random
import time

from bench.conductor.chains import KEY_BYTES
from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import OwnerId, RequestId, TenantId
from moonpool.messages.load import ComputeSample, LoadReport, StepSample
from moonpool.messages.plan import PlanRequest
from moonpool.messages.registry import Heartbeat, ModelRecord, Registration
from services.conductor.core import ConductorCore, Policy

BLOCK_TOKENS = 64
INSTANCES = 100
PROMPT_TOKENS = 16_384
MODEL = ModelRecord("m", b"f" * 32, "{}", BLOCK_TOKENS, 20 << 20, 80, 131072, "bfloat16")


def bench_decisions(decisions: int) -> dict[str, float]:
    """Whole plans for 16k-token prompts: 50 prefills, 50 decodes, 16 nodes on 25 hosts; a third of
    the prompts continue a chat, a third share a system prompt that many hold, a third are new."""
    rng = random.Random(2)
    core, now_s = _mesh(rng), 100.0
    full = PROMPT_TOKENS // BLOCK_TOKENS
    chats = [rng.randbytes(KEY_BYTES * full) for _ in range(600)]
    system = rng.randbytes(KEY_BYTES * 100)
    _fill(core, rng, chats, system)
    took: list[float] = []
    worked: list[float] = []  # on the core: what others on this machine do is no part of it
    start = time.perf_counter()
    for i in range(decisions):
        kind = i % 3
        if kind == 0:
            keys = rng.choice(chats)
        elif kind == 1:
            keys = system + rng.randbytes(KEY_BYTES * (full - 100))
        else:
            keys = rng.randbytes(KEY_BYTES * full)
        request = PlanRequest(
            RequestId(f"r{i}"), TenantId("t"), "m", MODEL.fingerprint, keys, PROMPT_TOKENS, 256
        )
        now_s += 0.005
        before, before_cpu = time.perf_counter(), time.thread_time()
        reply = core.plan(request, now_s)
        worked.append(time.thread_time() - before_cpu)
        took.append(time.perf_counter() - before)
        if i % 50 == 0:
            _report_all(core, now_s, 2 + i)
        assert reply.plan or reply.refusal
    total_s = time.perf_counter() - start
    took.sort()
    worked.sort()
    return {
        "decisions_per_s": round(len(took) / sum(took)),
        "decision_ms_p50": round(took[len(took) // 2] * 1e3, 3),
        "decision_ms_p99": round(took[int(len(took) * 0.99)] * 1e3, 3),
        "decision_cpu_ms_p50": round(worked[len(worked) // 2] * 1e3, 3),
        "decision_cpu_ms_p99": round(worked[int(len(worked) * 0.99)] * 1e3, 3),
        "decisions_with_reports_per_s": round(len(took) / total_s),
        "plans": core.plans,
        "refusals": sum(core.refusals.values()),
    }


def _mesh(rng: random.Random) -> ConductorCore:
    core = ConductorCore(Policy(1000.0, 10.0, 1e6, 1e6))
    roles = ["prefill"] * (INSTANCES // 2) + ["decode"] * (INSTANCES // 2) + ["store"] * 16
    for i, role in enumerate(roles):
        model = None if role == "store" else MODEL
        registration = Registration(f"{role}{i}", role, "e", 1.0, f"h{i % 25}", "1", model=model)
        core.heartbeat(Heartbeat(registration, "ready"), 100.0)
        epoch = core.holdings.begin_snapshot(OwnerId(registration.id))
        assert epoch is not None
        core.holdings.apply_page(SnapshotPage(OwnerId(registration.id), epoch, 0, {}), epoch)
    prefills = [
        ComputeSample(n, p, 0.065 + 1.165e-4 * n + 7.13e-10 * n * (n + 2 * p))
        for n in (64, 512, 2048, 8192, 16384)
        for p in (0, 2048, 8192)
    ]
    steps = [StepSample(n, n * 8000, 0.026 + 1e-4 * n + 1e-8 * n * 8000) for n in range(1, 40)]
    for member in core.fleet:
        if member.role != "store":
            report = LoadReport(
                member.id,
                "e",
                1,
                queued_requests=rng.randrange(4),
                queued_tokens=rng.randrange(30000),
                running=rng.randrange(30),
                slots_total=10_000,
                context_tokens=rng.randrange(300_000),
                blocks_free=1 << 24,
                blocks_total=1 << 24,
                compute=prefills if member.role == "prefill" else [],
                steps=steps if member.role == "decode" else [],
            )
            core.load(report, 100.0)
    return core


def _fill(core: ConductorCore, rng: random.Random, chats: list[bytes], system: bytes) -> None:
    """Chats lie on a prefill, a decode and a node each, of different lengths; the system prompt is
    everywhere."""
    seqs: dict[str, int] = {}

    def hold(id: str, role: str, keys: bytes) -> None:
        seqs[id] = seqs.get(id, 0) + 1
        tier = "dram" if role == "store" else "hbm"
        core.events(KvEvents(OwnerId(id), "e", seqs[id], tier, stored=keys))

    for member in core.fleet:
        hold(member.id, member.role, system)
    by_role = {role: core.fleet.of_roles([role]) for role in ("prefill", "decode", "store")}
    for keys in chats:
        for role, members in by_role.items():
            held = rng.randrange(1, len(keys) // KEY_BYTES + 1)
            hold(rng.choice(members).id, role, keys[: held * KEY_BYTES])


def _report_all(core: ConductorCore, now_s: float, seq: int) -> None:
    for member in core.fleet:
        old = member.load
        if old:
            report = LoadReport(
                member.id,
                "e",
                seq,
                queued_requests=old.queued_requests,
                queued_tokens=old.queued_tokens,
                running=old.running,
                slots_total=old.slots_total,
                context_tokens=old.context_tokens,
                blocks_free=old.blocks_free,
                blocks_total=old.blocks_total,
            )
            core.load(report, now_s)
