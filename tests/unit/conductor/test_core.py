"""The core as a whole: what scenario files cannot show."""

from collections import Counter

import pytest

from moonpool.messages.errors import CallerError
from moonpool.messages.ids import InstanceId, RequestId, TenantId
from moonpool.messages.plan import PlanRequest
from tests.unit.conductor.driver import BLOCK_TOKENS, MODEL, Mesh, chain_keys


def make_mesh(prefills: int = 4, decodes: int = 4) -> Mesh:
    mesh = Mesh()
    for i in range(prefills):
        mesh.join("prefill", f"p{i}", host=f"h{i}")
        mesh.learn_prefill(f"p{i}", 1e-3)
    for i in range(decodes):
        mesh.join("decode", f"d{i}", host=f"h{i}", slots=64)
        mesh.learn_step(f"d{i}", 0.02)
    return mesh


def test_a_burst_between_two_reports_spreads_over_all() -> None:
    mesh = make_mesh()
    plans = [mesh.plan(f"r{i}", f"chain{i}", 2000, ttft=99).plan for i in range(40)]
    prefills = Counter(plan.prefill for plan in plans if plan)
    decodes = Counter(plan.decode for plan in plans if plan)
    assert sum(prefills.values()) == 40
    assert max(prefills.values()) <= 12
    assert max(decodes.values()) <= 12
    mesh.core.check()


def test_equal_conductors_with_the_same_past_choose_alike() -> None:
    one, other = make_mesh(), make_mesh()
    for i in range(20):
        assert one.plan(f"r{i}", f"c{i % 3}", 3000) == other.plan(f"r{i}", f"c{i % 3}", 3000)


def test_half_a_key_is_a_callers_error() -> None:
    mesh = make_mesh()
    request = PlanRequest(RequestId("r"), TenantId("t"), "m", MODEL.fingerprint, b"x" * 17, 99, 9)
    with pytest.raises(CallerError):
        mesh.core.plan(request, mesh.now_s)


def test_a_gateway_with_another_model_of_that_name_is_told_so() -> None:
    mesh = make_mesh()
    reply = mesh.plan("r", "c", 100, fingerprint=b"z" * 32)
    assert reply.refusal is not None
    assert reply.refusal.code == "fingerprint_mismatch"
    assert "p0" in reply.refusal.message


def test_the_last_token_is_always_computed() -> None:
    mesh = make_mesh(1, 1)
    mesh.tell("p0", "hbm", stored=chain_keys("c", 0, 10))
    plan = mesh.plan("r", "c", 10 * BLOCK_TOKENS).plan
    assert plan is not None
    assert plan.runs[-1].end == 10
    assert plan.predicted_ttft_s > 0


def test_events_of_strangers_fill_no_memory() -> None:
    mesh = make_mesh(1, 1)
    for i in range(100):
        mesh.registrations[f"x{i}"] = mesh.registrations["p0"]
        mesh.seqs[f"x{i}"] = 0
        mesh.tell(f"x{i}", "hbm", stored=chain_keys("c", 0, 10))
    assert len(mesh.core.holdings.index) == 0
    mesh.core.check()


def test_new_blocks_go_to_a_node_on_the_prefills_host_first() -> None:
    mesh = make_mesh(1, 1)
    mesh.join("store", "far", host="elsewhere")
    mesh.join("store", "near", host="h0")
    assert (plan := mesh.plan("r", "c", 100).plan) is not None
    assert plan.store == "near"
    mesh.core.proven_dead("near", "near.1")
    assert (plan := mesh.plan("r", "c", 100).plan) is not None
    assert plan.store == "far"


def test_a_door_shut_by_one_bad_measurement_opens_again() -> None:
    mesh = make_mesh(1, 1)
    mesh.learn_prefill("p0", 10.0)
    mesh.learn_prefill("p0", 10.0)
    assert mesh.plan("r1", "c", 2000).refusal is not None
    mesh.wait(12.0)
    assert mesh.plan("r2", "c", 2000).plan is not None, "an idle instance is tried after a while"
    assert mesh.plan("r3", "c", 2000).refusal is not None, "by one request at a time"


def test_status_tells_of_every_member() -> None:
    mesh = make_mesh(1, 1)
    mesh.tell("p0", "hbm", stored=chain_keys("c", 0, 10))
    status = mesh.core.status("c1", 5.0, mesh.now_s)
    assert [member.registration.id for member in status.members] == ["d0", "p0"]
    assert status.members[1].blocks == {"hbm": 10}
    assert status.members[1].following
    assert status.members[1].load is not None
    assert status.blocks == {"hbm": 10}
    assert {predictor.name for predictor in status.predictors} == {
        "prefill",
        "step",
        "transfer",
        "ttft",
    }
    assert status.counters["members"] == 2


def test_a_probe_is_answered_and_counts_against_nobody() -> None:
    mesh = make_mesh(1, 1)
    mesh.learn_prefill("p0", 0.001)
    mesh.plan("r1", "c", 2000)
    before = mesh.core.stats()
    probe = PlanRequest(
        RequestId("r1"),
        TenantId("t"),
        "m",
        MODEL.fingerprint,
        b"",
        2000,
        256,
        exclude=(InstanceId("d9"),),
        probe=True,
    )
    reply = mesh.core.plan(probe, mesh.now_s)
    assert reply.plan
    assert reply.plan.predicted_ttft_s > 2.0
    assert mesh.core.stats() == before
