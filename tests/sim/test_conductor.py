"""The conductor's core on virtual time, around modelled instances: seeded, checked as it goes."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import OwnerId, RequestId, TenantId
from moonpool.messages.load import ComputeSample, LoadReport, StepSample
from moonpool.messages.plan import Plan, PlanRequest
from moonpool.messages.registry import Heartbeat, ModelRecord, Registration
from services.conductor.core import ConductorCore, Policy

BLOCK_TOKENS = 64
MODEL = ModelRecord("m", b"f" * 32, "{}", BLOCK_TOKENS, 1 << 20, 30, 131072, "bfloat16")
REPORT_S = 0.1
PLAN_TO_SUBMIT_S = 0.01
STEP_S = 0.02
LINK_BYTES_S = 1e9


@dataclass
class Instance:
    """One process: a queue of prompts, or a batch of answers, and a pool that forgets nothing."""

    id: str
    role: str
    alive: bool = True
    free_at_s: float = 0.0
    queue: list[tuple[float, int]] = field(default_factory=list)  # (done at, tokens)
    running: list[tuple[float, int]] = field(default_factory=list)  # (done at, context)
    held: set[bytes] = field(default_factory=set)
    seq: int = 0
    loads: int = 0
    samples: list[ComputeSample] = field(default_factory=list)


class World:
    """Requests arrive, instances work, reports come late."""

    def __init__(self, seed: int, prefills: int, decodes: int, slo_ttft_s: float = 1e6) -> None:
        self.rng = random.Random(seed)
        self.core = ConductorCore(Policy(slo_ttft_s, 10.0, 3.0, 30.0))
        self.now_s = 0.0
        self.instances = {
            f"{role[0]}{i}": Instance(f"{role[0]}{i}", role)
            for role, count in (("prefill", prefills), ("decode", decodes))
            for i in range(count)
        }
        self.todo: list[tuple[float, int, object]] = []
        self.order = 0
        self.ttfts: list[float] = []
        self.errors: list[float] = []
        self.reused_blocks = self.blocks = 0
        self.picked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.refused_retries: list[float] = []
        for instance in self.instances.values():
            self._join(instance)

    def at(self, when_s: float, what: object) -> None:
        self.order += 1
        heapq.heappush(self.todo, (when_s, self.order, what))

    def run(self, until_s: float) -> None:
        """Plays everything that happens before `until_s`, and the core's own ticks."""
        while self.todo and self.todo[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self.todo)
            what()  # type: ignore[operator]
        self.now_s = until_s

    # -- members

    def _join(self, instance: Instance) -> None:
        registration = Registration(
            instance.id, instance.role, "e", 1.0, f"h-{instance.id}", "1", model=MODEL
        )
        self.core.heartbeat(Heartbeat(registration, "ready"), 0.0)
        owner = OwnerId(instance.id)
        assert self.core.holdings.begin_snapshot(owner) == "e"
        self.core.holdings.apply_page(SnapshotPage(owner, "e", 0, {}), "e")
        self._report(instance, registration)

    def _report(self, instance: Instance, registration: Registration) -> None:
        if not instance.alive:
            return
        now_s = self.now_s
        instance.queue = [entry for entry in instance.queue if entry[0] > now_s]
        instance.running = [entry for entry in instance.running if entry[0] > now_s]
        instance.loads += 1
        batch, context = len(instance.running), sum(c for _, c in instance.running)
        is_decode = instance.role == "decode"
        self.core.heartbeat(Heartbeat(registration, "ready"), now_s)
        self.core.load(
            LoadReport(
                instance.id,
                "e",
                instance.loads,
                queued_requests=len(instance.queue),
                queued_tokens=sum(tokens for _, tokens in instance.queue),
                running=batch,
                slots_total=1000,
                context_tokens=context,
                blocks_free=1 << 20,
                blocks_total=1 << 20,
                compute=instance.samples,
                steps=[StepSample(batch, context, step_s(batch))] if is_decode and batch else [],
            ),
            now_s,
        )
        instance.samples = []
        self.core.tick(now_s)
        self.at(now_s + REPORT_S, lambda: self._report(instance, registration))

    def kill(self, id: str) -> None:
        self.instances[id].alive = False

    # -- requests

    def ask(self, keys: list[bytes], tokens: int, answer_tokens: int = 100) -> Plan | None:
        request = PlanRequest(
            RequestId(f"r{self.order}"),
            TenantId("t"),
            "m",
            MODEL.fingerprint,
            b"".join(keys),
            tokens,
            answer_tokens,
        )
        reply = self.core.plan(request, self.now_s)
        if reply.refusal:
            self.refused[reply.refusal.code] += 1
            self.refused_retries.append(reply.refusal.retry_after_s)
            return None
        plan = reply.plan
        assert plan is not None
        asked_s = self.now_s
        self.picked[plan.prefill] += 1
        self.at(
            asked_s + PLAN_TO_SUBMIT_S,
            lambda: self._submit(plan, asked_s, keys, tokens, answer_tokens),
        )
        return plan

    def _submit(
        self, plan: Plan, asked_s: float, keys: list[bytes], tokens: int, answer_tokens: int
    ) -> None:
        prefill = self.instances[plan.prefill]
        reused, moved = 0, 0
        for run in plan.runs:
            owner = self.instances[run.owner]
            assert owner.alive or self.now_s - asked_s < 5.0
            if not owner.held.issuperset(keys[run.start : run.end]):
                break
            reused = run.end
            moved += 0 if owner is prefill else run.end - run.start
        new = max(1, tokens - reused * BLOCK_TOKENS)
        compute_s = prefill_s(new, tokens - new) * self.rng.uniform(0.95, 1.05)
        work_s = max(compute_s, moved * MODEL.block_bytes / LINK_BYTES_S)
        prefill.free_at_s = max(prefill.free_at_s, self.now_s) + work_s
        prefill.queue.append((prefill.free_at_s, new))
        self.blocks += len(keys)
        self.reused_blocks += reused
        self.at(
            prefill.free_at_s,
            lambda: self._prefilled(plan, asked_s, keys, tokens, answer_tokens, new, compute_s),
        )

    def _prefilled(
        self,
        plan: Plan,
        asked_s: float,
        keys: list[bytes],
        tokens: int,
        answer_tokens: int,
        new: int,
        compute_s: float,
    ) -> None:
        prefill, decode = self.instances[plan.prefill], self.instances[plan.decode]
        prefill.samples.append(ComputeSample(new, tokens - new, compute_s))
        ttft_s = self.now_s - asked_s
        self.ttfts.append(ttft_s)
        self.errors.append(abs(plan.predicted_ttft_s - ttft_s) / ttft_s)
        self._hold(prefill, keys)
        self._hold(decode, keys)
        done_s = self.now_s + answer_tokens * step_s(len(decode.running) + 1)
        decode.running.append((done_s, tokens))

    def _hold(self, instance: Instance, keys: list[bytes]) -> None:
        fresh = [key for key in keys if key not in instance.held]
        if fresh and instance.alive:
            instance.held.update(fresh)
            instance.seq += 1
            self.core.events(
                KvEvents(OwnerId(instance.id), "e", instance.seq, "hbm", b"".join(fresh))
            )


def prefill_s(new: int, cached: int) -> float:
    return 0.02 + 2e-4 * new + 1e-9 * new * (new + 2 * cached)


def step_s(batch: int) -> float:
    return STEP_S + 0.0005 * batch


def make_keys(rng: random.Random, blocks: int) -> list[bytes]:
    return [rng.randbytes(16) for _ in range(blocks)]


def play_chats(world: World, requests: int, per_s: float, chats: int = 40) -> None:
    """Turns of chats that grow, arriving at random."""
    rng = random.Random(world.rng.random())
    grown = [make_keys(rng, rng.randrange(5, 60)) for _ in range(chats)]
    at_s = 2.0

    def turn() -> None:
        keys = grown[rng.randrange(chats)]
        keys += make_keys(rng, rng.randrange(1, 8))
        world.ask(list(keys), len(keys) * BLOCK_TOKENS + rng.randrange(64))

    for _ in range(requests):
        at_s += rng.expovariate(per_s)
        world.at(at_s, turn)
    for second in range(int(at_s) + 10):
        world.at(second, world.core.check)
    world.run(at_s + 60.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chats_find_their_prefix_and_load_is_spread(seed: int) -> None:
    world = World(seed, prefills=4, decodes=4)
    play_chats(world, requests=400, per_s=4.0)
    assert len(world.ttfts) == 400
    assert world.reused_blocks > 0.75 * world.blocks, f"seed {seed}"
    assert max(world.picked.values()) < 3 * min(world.picked.values()), f"seed {seed}"


def test_predictions_become_true() -> None:
    world = World(4, prefills=3, decodes=3)
    play_chats(world, requests=300, per_s=4.0)
    late = sorted(world.errors[100:])
    assert late[len(late) // 2] < 0.2
    assert late[int(len(late) * 0.9)] < 0.8


def test_a_dead_prefill_is_left_out_and_its_blocks_are_computed_again() -> None:
    world = World(5, prefills=3, decodes=2)
    world.at(20.0, lambda: world.kill("p0"))
    picked_late: list[str] = []
    world.at(24.0, lambda: world.picked.clear())
    play_chats(world, requests=200, per_s=4.0)
    picked_late = list(world.picked)
    assert "p0" not in picked_late
    assert {"p1", "p2"} <= set(picked_late)


def test_overload_is_refused_early_and_what_is_accepted_keeps_its_promise() -> None:
    slo_s = 3.0
    world = World(6, prefills=2, decodes=4, slo_ttft_s=slo_s)
    rng = random.Random(6)
    for i in range(600):
        keys = make_keys(rng, 60)
        world.at(2.0 + i / 15.0, lambda keys=keys: world.ask(keys, 60 * BLOCK_TOKENS))
    world.run(120.0)
    assert world.refused["ttft"] > 100
    assert len(world.ttfts) > 80, "the prefills stay busy"
    settled = sorted(world.ttfts[30:])
    assert settled[int(len(settled) * 0.95)] < slo_s * 1.25
    assert min(world.refused_retries) >= 0.0


def test_the_same_seed_plays_the_same() -> None:
    outcomes = []
    for _ in range(2):
        world = World(7, prefills=3, decodes=3)
        play_chats(world, requests=100, per_s=4.0)
        outcomes.append((world.ttfts, world.picked))
    assert outcomes[0] == outcomes[1]
