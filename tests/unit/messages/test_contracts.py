"""The public contracts: strict where written, tolerant where read, and documented."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from moonpool.messages import MalformedMessage
from moonpool.messages.audit import (
    AttemptV1,
    AuditEventV1,
    CachedTokensV1,
    StageTimingsV1,
    read_audit,
)
from moonpool.messages.metrics import MetricsSnapshotV1, read_metrics
from moonpool.messages.schemas import CONTRACTS, schema_text, write_schemas

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def make_event() -> AuditEventV1:
    return AuditEventV1(
        event_id="e1",
        unix_s=1.5,
        gateway="gateway-1",
        tenant="public",
        request_id="r1",
        endpoint="/v1/chat/completions",
        model="smol",
        stream=True,
        outcome="ok",
        http_status=200,
        prompt_tokens=100,
        completion_tokens=7,
        cached_tokens=CachedTokensV1(hbm=64),
        timings=StageTimingsV1(ttft_s=0.1, total_s=0.5),
        attempts=[AttemptV1(prefill="p1", decode="d1")],
    )


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_the_schemas_in_docs_are_up_to_date(name: str) -> None:
    kept = (SCHEMAS / name).read_text(encoding="utf-8")
    assert kept == schema_text(CONTRACTS[name]), "run `python -m moonpool.messages.schemas`"


def test_schemas_are_written_where_asked(tmp_path: Path) -> None:
    written = write_schemas(tmp_path / "new")
    assert {path.name for path in written} == set(CONTRACTS)
    for path in written:
        assert "$schema" in json.loads(path.read_text(encoding="utf-8"))


def test_an_event_survives_the_wire() -> None:
    event = make_event()
    assert read_audit(event.model_dump_json().encode()) == event
    assert event.cached_tokens.total == 64


def test_a_producer_cannot_write_what_the_contract_lacks() -> None:
    with pytest.raises(ValidationError):
        AuditEventV1.model_validate({**make_event().model_dump(), "prompt": "secret"})
    with pytest.raises(ValidationError):
        AuditEventV1.model_validate({**make_event().model_dump(), "outcome": "fine"})


def test_a_consumer_ignores_what_it_does_not_know_at_any_depth() -> None:
    body = make_event().model_dump()
    body["later"] = 1
    body["timings"]["later_s"] = 2.0
    body["cached_tokens"]["tape"] = 3
    body["attempts"][0]["later"] = [1]
    assert read_audit(json.dumps(body).encode()) == make_event()
    snapshot = MetricsSnapshotV1(service="store", id="n1", epoch="e", unix_s=1.0, uptime_s=1.0)
    raw = {**snapshot.model_dump(), "samples": [{"name": "a", "kind": "gauge", "value": 1, "x": 2}]}
    assert read_metrics(json.dumps(raw).encode()).samples[0].value == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version": 2}', b"\xff\xfe", b"null"])
def test_what_is_no_event_is_a_malformed_message(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_audit(data)
