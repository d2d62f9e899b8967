"""Which side is short, from what was asked and what was refused."""

import pytest

from moonpool.messages.advice import ModelAdvice, SideAdvice
from moonpool.messages.ids import InstanceId, RequestId, TenantId
from moonpool.messages.load import StepSample
from moonpool.messages.plan import PlanReply, PlanRequest
from moonpool.messages.registry import Heartbeat, Registration
from services.conductor.advice import Advisor, Rate
from tests.unit.conductor.driver import BLOCK_TOKENS, MODEL, Mesh, chain_keys


def ask(mesh: Mesh, advisor: Advisor, name: str, tokens: int, exclude: str = "") -> PlanReply:
    request = PlanRequest(
        RequestId(name),
        TenantId("t"),
        "m",
        MODEL.fingerprint,
        chain_keys(name, 0, tokens // BLOCK_TOKENS),
        tokens,
        256,
        attempt=1 if exclude else 0,
        exclude=(InstanceId(exclude),) if exclude else (),
    )
    reply = mesh.core.plan(request, mesh.now_s)
    advisor.note(request, reply, mesh.now_s)
    return reply


def make_mesh(prefills: int = 1, decodes: int = 1, colocated: int = 0) -> tuple[Mesh, Advisor]:
    mesh = Mesh()
    for role, count in (("prefill", prefills), ("decode", decodes), ("colocated", colocated)):
        for number in range(count):
            id = f"{role}-{number}"
            mesh.join(role, id)
            if role != "decode":
                mesh.learn_prefill(id, 0.001)
            if role != "prefill":
                mesh.learn_step(id, 0.02)
    return mesh, Advisor(mesh.core, mesh.now_s)


def load(mesh: Mesh, advisor: Advisor, seconds: int, tokens: int, each_s: int = 1) -> None:
    """One prompt of `tokens` every `each_s`; it is done at once, as reports say."""
    for second in range(seconds):
        if second % each_s == 0:
            ask(mesh, advisor, f"r{mesh.now_s}", tokens)
        mesh.wait(1.0)


def side(advice: ModelAdvice, name: str) -> SideAdvice:
    return next(each for each in advice.sides if each.side == name)


def test_a_rate_follows_what_comes_and_forgets() -> None:
    rate = Rate(60.0)
    assert rate.per_s(0.0) == 0.0
    for second in range(120):
        rate.add(2.0, float(second))
    assert rate.per_s(120.0) == pytest.approx(2.0, rel=0.05)
    assert rate.per_s(600.0) < 0.01


def test_a_young_rate_is_not_diluted_by_the_time_before_it() -> None:
    rate = Rate(60.0)
    for second in range(5):
        rate.add(1.0, 1000.0 + second)
    assert rate.per_s(1005.0) == pytest.approx(1.0, rel=0.2)


def test_a_mesh_with_little_to_do_is_told_that_it_has_enough() -> None:
    mesh, advisor = make_mesh()
    load(mesh, advisor, 30, 200, each_s=5)
    (advice,) = advisor.advise(mesh.now_s).models
    assert advice.says == "enough of everything"
    assert [each.short for each in advice.sides] == [0, 0]


def test_two_seconds_of_compute_a_second_need_three_prefills() -> None:
    mesh, advisor = make_mesh(prefills=1)
    load(mesh, advisor, 90, 2000)
    (advice,) = advisor.advise(mesh.now_s).models
    assert side(advice, "prefill").needed == pytest.approx(2.5, rel=0.15)
    assert side(advice, "prefill").short == 2
    assert "add 2 prefill" in advice.says


def test_refused_prompts_count_as_asked() -> None:
    mesh, advisor = make_mesh(prefills=1)
    refused = 0
    for second in range(60):
        mesh.learn_prefill("prefill-0", 0.001)  # it is sure of itself
        reply = ask(mesh, advisor, f"long{second}", 12_000)
        refused += reply.refusal is not None and reply.refusal.code == "ttft"
        mesh.wait(1.0)
    assert refused > 40
    (advice,) = advisor.advise(mesh.now_s).models
    assert side(advice, "prefill").short > 5
    assert side(advice, "prefill").refused_per_s == pytest.approx(refused / 60, rel=0.2)
    assert side(advice, "decode").refused_per_s == 0.0


def test_full_decodes_are_short_and_an_idle_prefill_is_not() -> None:
    mesh, advisor = make_mesh(decodes=2)
    for id in ("decode-0", "decode-1"):
        mesh.report(id, running=8, context_tokens=16_000, slots_total=8)
    for second in range(30):
        assert ask(mesh, advisor, f"r{second}", 100).refusal
        mesh.wait(1.0)
    (advice,) = advisor.advise(mesh.now_s).models
    assert side(advice, "decode").short >= 1
    assert side(advice, "prefill").short <= 0


def test_the_promise_bounds_what_a_decode_carries() -> None:
    mesh, advisor = make_mesh(decodes=1)
    slow = [StepSample(n, n * 1000, 0.05 * n) for n in range(1, 20)]
    mesh.report("decode-0", steps=slow * 5, slots_total=64, running=8, context_tokens=8000)
    (advice,) = advisor.advise(mesh.now_s).models
    # the promise is 0.2 s: four at once, and eight are running
    assert side(advice, "decode").needed > 1.5


def test_instances_that_do_both_take_up_what_is_left() -> None:
    mesh, advisor = make_mesh(prefills=0, decodes=0, colocated=1)
    load(mesh, advisor, 90, 2000)
    (advice,) = advisor.advise(mesh.now_s).models
    assert [each.side for each in advice.sides] == ["colocated"]
    assert side(advice, "colocated").short == 2


def test_later_attempts_of_one_request_count_once() -> None:
    mesh, advisor = make_mesh(prefills=2)
    ask(mesh, advisor, "r", 2000)
    once = advisor.needs("m", mesh.now_s)
    ask(mesh, advisor, "r", 2000, exclude="prefill-0")
    assert advisor.needs("m", mesh.now_s) == once


def test_every_conductor_sees_its_share_and_counts_for_all() -> None:
    mesh, advisor = make_mesh()
    ask(mesh, advisor, "r", 2000)
    alone, _ = advisor.needs("m", mesh.now_s)
    for id in ("c1", "c2"):
        beat = Heartbeat(Registration(id, "conductor", "e", 1.0, "h", "1"), "ready")
        mesh.core.heartbeat(beat, mesh.now_s)
    assert advisor.needs("m", mesh.now_s)[0] == pytest.approx(2 * alone)
