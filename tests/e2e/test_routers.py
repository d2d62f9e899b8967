"""What routers in front and operators ask of a real mesh: who holds a prompt, what is short."""

import httpx
import pytest

from moonpool.messages.advice import AdviceReply, AdviceRequest
from moonpool.messages.codec import decode, encode
from moonpool.messages.subjects import Subjects
from tests.e2e.conftest import Mesh

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PROMPT = "A router asks where this prompt's blocks are before it sends it anywhere. " * 12


async def test_where_finds_what_an_answer_left_behind(mesh: Mesh) -> None:
    model = mesh.local.model_name
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    async with httpx.AsyncClient(base_url=mesh.url, timeout=60.0) as client:
        asked = {"model": model, "prompt": PROMPT}
        before = (await client.post("/v1/where", json=asked)).json()
        assert (before["blocks"] > 0, before["holders"]) == (True, [])
        slow = await client.post("/v1/completions", json=body | {"cache_salt": "x"})
        assert slow.status_code == 200
        headers = {"x-moonpool-priority": "low", "x-moonpool-slo-ttft": "60"}
        assert (await client.post("/v1/completions", json=body, headers=headers)).is_success
        for _ in range(100):
            found = (await client.post("/v1/where", json=asked)).json()
            whole = {h["tier"] for h in found["holders"] if h["prefix_blocks"] == found["blocks"]}
            if {"hbm", "dram"} <= whole:
                break
        assert {"hbm", "dram"} <= whole
        other = await client.post("/v1/where", json=asked | {"cache_salt": "y"})
        assert other.json()["holders"] == []


async def test_advice_counts_what_was_asked(mesh: Mesh) -> None:
    reply = decode(
        await mesh.hand.bus.request(Subjects().advise, encode(AdviceRequest()), 5.0), AdviceReply
    )
    (model,) = reply.models
    assert model.model == mesh.local.model_name
    assert {side.side: side.have for side in model.sides} == {"prefill": 2, "decode": 2}
