"""Probes, keys, isolation, metrics, audit: the gateway as operators and tenants see it."""

import pytest

from moonpool.kv import block_keys, chain_root, isolation_salt
from moonpool.messages.audit import AuditEventV1
from moonpool.settings import SettingsError
from services.gateway.audit import stream_name
from services.gateway.core.tenants import PUBLIC, Tenants, secret_bytes
from tests.support.until import until
from tests.unit.gateway.house import answer_tokens, open_house
from tests.unit.gateway.scripts import BLOCK_TOKENS, FINGERPRINT, MODEL, refusal

KEYS = "sk-alpha-key=alpha, sk-beta=key==beta"
LONG = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 4}]


async def test_live_ready_and_health_say_what_is_there() -> None:
    async with open_house() as house:
        assert (await house.http.get("/live")).status_code == 200
        ready = await house.http.get("/ready")
        assert (ready.status_code, ready.json()["missing"]) == (200, [])
        health = (await house.http.get("/health")).json()
        assert health["status"] == "ok"
        assert health["members"]["prefill"] == {"ready": 1}
        assert health["stats"]["bus"]["subscriptions"] >= 2


async def test_ready_names_what_is_missing() -> None:
    async with open_house() as house:
        await house.mesh.kill(house.mesh.instances["d1"])
        house.gateway.members.doubt("d1")
        answer = await house.http.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["missing"] == ["no decode instance"]
        house.gateway.text = None
        answer = await house.http.get("/ready")
        assert "the tokenizer is still loading" in answer.json()["missing"]
        assert (await house.chat()).status_code == 503


async def test_a_draining_gateway_refuses_with_retry_after() -> None:
    async with open_house() as house:
        house.gateway.draining = True
        response = await house.chat()
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "draining"
        assert (await house.http.get("/ready")).status_code == 503


async def test_a_model_without_chat_template_refuses_chats_and_completes_prompts() -> None:
    async with open_house(chat=False) as house:
        response = await house.chat()
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "no_chat_template"
        done = await house.sdk.completions.create(model=MODEL, prompt="hello", max_tokens=64)
        assert done.choices[0].finish_reason == "stop"


async def test_metrics_count_requests_tokens_and_times() -> None:
    async with open_house() as house:
        house.mesh.cached = {"dram": 3}
        await house.chat()
        house.mesh.plan_refusal = refusal("ttft")
        await house.chat()
        text = (await house.http.get("/metrics")).text
    chat = 'endpoint="/v1/chat/completions"'
    for line in (
        f'moonpool_requests_total{{{chat},outcome="ok"}} 1',
        f'moonpool_requests_total{{{chat},outcome="refused"}} 1',
        'moonpool_rejections_total{reason="ttft"} 1',
        'moonpool_cached_tokens_total{tier="dram"} 3',
        f"moonpool_completion_tokens_total {len(answer_tokens())}",
        f'moonpool_ttft_seconds_count{{model="{MODEL}"}} 1',
        "moonpool_gateway_overhead_seconds_count 2",
        "moonpool_requests_running 0",
    ):
        assert line in text
    assert "moonpool_tbt_seconds_count" in text


async def test_every_end_of_a_request_is_audited_once() -> None:
    async with open_house(api_keys=KEYS) as house:
        house.mesh.cached = {"hbm": 2, "oss": 1}
        key = {"authorization": "Bearer sk-alpha-key"}
        hello = {"model": MODEL, "messages": LONG}
        await house.http.post("/v1/chat/completions", json=hello, headers=key)
        stopped = hello | {"stop": "fox", "stream": True}
        await house.http.post("/v1/chat/completions", json=stopped, headers=key)
        await house.http.post("/v1/chat/completions", json={}, headers=key)
        await until(lambda: len(house.audited()) == 3)
        events = [AuditEventV1.model_validate(each) for each in house.audited()]
        subjects = {subject for subject, _ in house.mesh.broker.kept("MP_AUDIT")}
    assert subjects == {"mp.audit.alpha.request_end"}
    assert [e.outcome for e in events] == ["ok", "stopped", "refused"]
    first = events[0]
    assert first.tenant == "alpha"
    assert (first.cached_tokens.hbm, first.cached_tokens.oss) == (2, 1)
    assert first.completion_tokens == len(answer_tokens())
    assert (first.attempts[0].prefill, first.attempts[0].decode) == ("p1", "d1")
    assert first.timings.ttft_s is not None
    assert first.timings.compute_s == pytest.approx(0.02)
    assert events[1].stream
    assert (events[2].http_status, events[2].code) == (400, "missing_required_parameter")


async def test_audit_events_wait_while_no_stream_takes_them_and_requests_do_not() -> None:
    async with open_house() as house:
        streams = dict(house.mesh.broker.streams)
        house.mesh.broker.streams.clear()
        assert (await house.chat()).status_code == 200
        await until(lambda: house.gateway.audit.stats()["retries"] > 0)
        assert house.gateway.audit.stats()["waiting"] == 1
        house.mesh.broker.streams.update(streams)
        await until(lambda: house.gateway.audit.stats()["delivered"] == 1)
        assert len(house.audited()) == 1


def test_each_mesh_has_its_own_audit_stream() -> None:
    assert stream_name("mp") == "MP_AUDIT"
    assert stream_name("test-7") == "TEST-7_AUDIT"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong-key", 401),
        ("Basic sk-alpha-key", 401),
        ("Bearer sk-alpha-key", 200),
        ("bearer sk-beta=key=", 200),
    ],
)
async def test_a_key_is_asked_for_when_keys_are_configured(header: str | None, status: int) -> None:
    async with open_house(api_keys=KEYS) as house:
        headers = {"authorization": header} if header is not None else {}
        hello = {"model": MODEL, "messages": LONG}
        answer = await house.http.post("/v1/chat/completions", json=hello, headers=headers)
        assert answer.status_code == status
        listed = await house.http.get("/v1/models", headers=headers)
        assert listed.status_code == status
        if status == 401:
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert listed.json()["error"]["code"] == "invalid_api_key"
        assert (await house.http.get("/ready")).status_code == 200


async def test_block_keys_differ_by_tenant_and_cache_salt() -> None:
    async with open_house(api_keys=KEYS, secret="s3cret") as house:
        sent = house.mesh.instances["p1"].submits
        hello = {"model": MODEL, "messages": LONG}
        for key, salt in (("sk-alpha-key", ""), ("sk-beta=key=", ""), ("sk-alpha-key", "mine")):
            body = hello | ({"cache_salt": salt} if salt else {})
            headers = {"authorization": f"Bearer {key}"}
            await house.http.post("/v1/chat/completions", json=body, headers=headers)
        assert [s.tenant for s in sent] == ["alpha", "beta", "alpha"]
        assert len({s.root for s in sent}) == len({s.keys for s in sent}) == 3
        root = chain_root(FINGERPRINT, isolation_salt(secret_bytes("s3cret"), "alpha", "mine"))
        assert sent[2].root == root
        tokens = [
            int.from_bytes(sent[2].tokens[i : i + 4], "little")
            for i in range(0, len(sent[2].tokens), 4)
        ]
        assert b"".join(block_keys(root, tokens, BLOCK_TOKENS)) == sent[2].keys


@pytest.mark.parametrize(
    "spec",
    [
        "nokey",
        "=tenant",
        "short=alpha",
        "sk-alpha-key=",
        "sk-alpha-key=a.b",
        "sk-alpha-key=a,sk-alpha-key=b",
    ],
)
def test_a_bad_list_of_keys_stops_the_start_and_shows_no_key(spec: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Tenants(spec)
    assert "MOONPOOL_API_KEYS" in caught.value.message
    assert "sk-alpha" not in caught.value.message


def test_without_keys_everybody_is_public() -> None:
    assert Tenants("").identify(None) == PUBLIC


async def test_the_api_describes_itself() -> None:
    async with open_house() as house:
        described = (await house.http.get("/openapi.json")).json()
    body = described["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert "messages" in body["content"]["application/json"]["schema"]["properties"]
