"""Who is there, who may join, and whose word counts."""

import json
from dataclasses import asdict

from moonpool.kv import BlockLayout, ModelIdentity
from moonpool.messages.load import LoadReport
from moonpool.messages.registry import Heartbeat, ModelRecord, Registration
from services.conductor.fleet import Fleet, Health

SUSPECT_S, DEAD_S = 3.0, 30.0


def make_record(weights: str = "aa", block_tokens: int = 64, dtype: str = "float32") -> ModelRecord:
    identity = ModelIdentity("m", "r1", weights, BlockLayout(2, 2, 8, block_tokens, dtype), "{}")
    return ModelRecord(
        "m",
        identity.fingerprint(),
        json.dumps(asdict(identity)),
        block_tokens,
        identity.layout.block_bytes,
        2,
        2048,
        dtype,
    )


def make_registration(
    id: str, epoch: str = "e1", started: float = 1.0, model: ModelRecord | None = None
) -> Registration:
    return Registration(id, "prefill" if model else "store", epoch, started, "h1", "1", model=model)


def make_fleet(*registrations: Registration) -> Fleet:
    fleet = Fleet(SUSPECT_S, DEAD_S)
    for registration in registrations:
        fleet.heartbeat(Heartbeat(registration, "ready"), 0.0)
    return fleet


def test_a_twin_with_other_weights_is_refused_by_name() -> None:
    fleet = make_fleet(make_registration("p1", model=make_record("aa")))
    refusal = fleet.hello(make_registration("p2", model=make_record("bb")), 0.5)
    assert refusal is not None
    assert refusal.code == "fingerprint_mismatch"
    assert "p1" in refusal.message
    assert "p2" in refusal.message
    assert "weights_digest: bb != aa" in refusal.message


def test_every_differing_field_is_named() -> None:
    fleet = make_fleet(make_registration("p1", model=make_record()))
    other = make_record(block_tokens=128, dtype="bfloat16")
    refusal = fleet.hello(make_registration("p2", model=other), 0.5)
    assert refusal is not None
    for part in ("layout:", "block_tokens: 128 != 64", "dtype: bfloat16 != float32"):
        assert part in refusal.message


def test_an_identity_of_another_version_is_still_compared() -> None:
    fleet = make_fleet(make_registration("p1", model=make_record()))
    strange = ModelRecord("m", b"x" * 32, '{"new": 1}', 64, 1, 2, 2048, "float32")
    refusal = fleet.hello(make_registration("p2", model=strange), 0.5)
    assert refusal is not None
    assert 'identity: {"new": 1}' in refusal.message


def test_twins_that_say_hello_at_once_are_told_apart() -> None:
    fleet = make_fleet()
    assert fleet.hello(make_registration("p1", model=make_record("aa")), 0.0) is None
    assert fleet.hello(make_registration("p2", model=make_record("bb")), 0.0) is not None


def test_a_mismatch_that_only_sends_heartbeats_does_not_serve() -> None:
    fleet = make_fleet(
        make_registration("p1", started=1.0, model=make_record("aa")),
        make_registration("p2", started=2.0, model=make_record("bb")),
    )
    p1, p2 = fleet.get("p1"), fleet.get("p2")
    assert p1 is not None
    assert p2 is not None
    assert p1.can_serve()
    assert not p2.can_serve()
    fleet.leave("p1", "e1", final=True)
    fleet.heartbeat(Heartbeat(p2.registration, "ready"), 1.0)
    assert p2.can_serve(), "nobody is left to differ from"


def test_other_models_and_nodes_do_not_have_to_match() -> None:
    fleet = make_fleet(make_registration("p1", model=make_record("aa")), make_registration("n1"))
    assert fleet.hello(make_registration("n2"), 0.5) is None


def test_an_id_is_taken_while_its_holder_lives_and_free_once_it_is_silent() -> None:
    fleet = make_fleet(make_registration("n1", "e1"))
    refusal = fleet.hello(make_registration("n1", "e2", 2.0), 1.0)
    assert refusal is not None
    assert refusal.code == "duplicate_id"
    assert refusal.retry_after_s == SUSPECT_S - 1.0
    assert fleet.hello(make_registration("n1", "e1"), 1.0) is None, "its own second hello"
    assert fleet.hello(make_registration("n1", "e2", 2.0), SUSPECT_S) is None


def test_an_id_is_free_at_once_after_a_goodbye_or_a_proof_of_death() -> None:
    for final in (True, False):
        fleet = make_fleet(make_registration("n1", "e1"))
        fleet.leave("n1", "e1", final=final)
        assert fleet.hello(make_registration("n1", "e2", 2.0), 0.1) is None


def test_the_later_start_wins_and_the_earlier_one_is_not_heard_again() -> None:
    fleet = make_fleet(make_registration("n1", "e1", 1.0))
    change = fleet.heartbeat(Heartbeat(make_registration("n1", "e2", 2.0), "ready"), 0.1)
    assert change is not None
    assert change.kind == "restarted"
    assert fleet.heartbeat(Heartbeat(make_registration("n1", "e1", 1.0), "ready"), 0.2) is None
    assert fleet.load(LoadReport("n1", "e1", 9), 0.3) is None
    member = fleet.get("n1")
    assert member is not None
    assert member.epoch == "e2"
    assert member.heard_s == 0.1
    fleet.check()


def test_silence_is_suspicion_first_and_death_much_later() -> None:
    fleet = make_fleet(make_registration("n1"))
    assert fleet.tick(SUSPECT_S - 0.1) == []
    assert [change.kind for change in fleet.tick(SUSPECT_S)] == ["suspect"]
    assert fleet.tick(SUSPECT_S + 0.1) == [], "said once"
    back = fleet.load(LoadReport("n1", "e1", 1), 10.0)
    assert back is not None
    assert back.kind == "alive"
    assert [change.kind for change in fleet.tick(10.0 + DEAD_S)] == ["left"]
    joined = fleet.heartbeat(Heartbeat(make_registration("n1"), "ready"), 50.0)
    assert joined is not None
    assert joined.kind == "joined", "it only stalled"


def test_old_load_reports_do_not_overwrite_newer_ones() -> None:
    fleet = make_fleet(make_registration("n1"))
    fleet.load(LoadReport("n1", "e1", 5, queued_requests=5), 0.1)
    fleet.load(LoadReport("n1", "e1", 4, queued_requests=4), 0.2)
    member = fleet.get("n1")
    assert member is not None
    assert member.load is not None
    assert member.load.queued_requests == 5
    assert member.health is Health.ALIVE
