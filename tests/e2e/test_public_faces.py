"""What outside programs see: OpenAI's SDK, NATS services, audit and metrics."""

import json

import httpx
import nats
import openai
import pytest

from moonpool.messages.audit import AuditEventV1
from moonpool.messages.metrics import MetricsSnapshotV1
from tests.e2e.conftest import Mesh
from tests.support.until import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


def sdk(mesh: Mesh) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{mesh.url}/v1", api_key="any", max_retries=0)


async def test_openais_sdk_chats_streams_and_counts(mesh: Mesh) -> None:
    async with sdk(mesh) as client:
        models = await client.models.list()
        model = models.data[0].id
        whole = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Name a colour."}],
            temperature=0,
            max_tokens=12,
            logprobs=True,
            top_logprobs=3,
        )
        assert whole.choices[0].finish_reason in ("stop", "length")
        assert whole.usage is not None
        assert whole.usage.completion_tokens <= 12
        assert whole.choices[0].logprobs is not None
        text = ""
        async for chunk in await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Name a colour."}],
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunk.usage is not None
        assert chunk.usage.completion_tokens == whole.usage.completion_tokens
        done = await client.completions.create(
            model=model, prompt="The sky is", max_tokens=5, temperature=0
        )
        assert done.choices[0].text


async def test_openais_sdk_raises_its_own_errors(mesh: Mesh) -> None:
    async with sdk(mesh) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(
                model="gpt-nothing", messages=[{"role": "user", "content": "Hi"}]
            )
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as empty:
            await client.chat.completions.create(model=mesh.local.model_name, messages=[])
        assert empty.value.param == "messages"
        with pytest.raises(openai.BadRequestError) as long:
            await client.completions.create(
                model=mesh.local.model_name, prompt=[5] * 9000, max_tokens=1
            )
        assert long.value.code == "context_length_exceeded"


async def test_the_same_seed_gives_the_same_text_and_another_gives_another(mesh: Mesh) -> None:
    async with sdk(mesh) as client:

        async def say(seed: int) -> str:
            reply = await client.chat.completions.create(
                model=mesh.local.model_name,
                messages=[{"role": "user", "content": "Invent a name for a boat."}],
                temperature=1.0,
                seed=seed,
                max_tokens=24,
            )
            return reply.choices[0].message.content or ""

        assert await say(7) == await say(7)
        assert len({await say(seed) for seed in range(4)}) > 1


async def test_nats_discovery_lists_every_service(mesh: Mesh) -> None:
    client = await nats.connect(mesh.local.nats_url)
    found: dict[str, set[str]] = {}
    inbox = client.new_inbox()

    async def note(message: nats.aio.msg.Msg) -> None:
        info = json.loads(message.data)
        found.setdefault(info["name"], set()).update(e["subject"] for e in info["endpoints"])

    await client.subscribe(inbox, cb=note)
    await client.publish("$SRV.INFO", b"", reply=inbox)
    wanted = {"conductor", "prefill", "decode", "store"}
    await until(lambda: wanted <= set(found))
    assert "mp.conductor.plan" in found["conductor"]
    assert {"mp.prefill.prefill-1.submit", "mp.prefill.prefill-2.submit"} <= found["prefill"]
    assert {"mp.decode.decode-1.reserve", "mp.decode.decode-2.start"} <= found["decode"]
    assert "mp.store.store-1.put_start" in found["store"]
    await client.close()


async def test_a_plain_subscriber_receives_valid_audit_and_metrics(mesh: Mesh) -> None:
    client = await nats.connect(mesh.local.nats_url)
    audits: list[AuditEventV1] = []
    metrics: list[MetricsSnapshotV1] = []

    async def audit(message: nats.aio.msg.Msg) -> None:
        audits.append(AuditEventV1.model_validate_json(message.data))

    async def metric(message: nats.aio.msg.Msg) -> None:
        metrics.append(MetricsSnapshotV1.model_validate_json(message.data))

    await client.subscribe("mp.audit.>", cb=audit)
    await client.subscribe("mp.metrics.>", cb=metric)
    await client.flush()
    async with httpx.AsyncClient(timeout=60.0) as http:
        await http.post(
            f"{mesh.url}/v1/chat/completions",
            json={
                "model": mesh.local.model_name,
                "messages": [{"role": "user", "content": "Hello there"}],
                "max_tokens": 5,
            },
        )
    roles = {"gateway", "conductor", "prefill", "decode", "store"}
    await until(lambda: bool(audits) and roles <= {m.service for m in metrics}, 15.0)
    event = audits[-1]
    assert event.tenant == "public"
    assert event.outcome == "ok"
    assert event.completion_tokens >= 1
    assert event.attempts[-1].prefill.startswith("prefill-")
    assert event.timings.ttft_s is not None
    await client.close()
