"""Chats over a real mesh: the next turn hits, many at once, nothing left behind."""

import asyncio
import contextlib
import json
import time
from typing import Any

import httpx
import pytest

from moonpool.messages.audit import read_audit
from moonpool.messages.ids import OwnerId
from moonpool.messages.plan import PrefixRun
from moonpool.messages.sampling import SamplingParams
from tests.e2e.conftest import Mesh
from tests.support.mesh_state import busy
from tests.support.reference import Reference
from tests.support.until import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

Messages = list[dict[str, str]]
LONG_QUESTION = "Tell me, in order and with a reason for each, " + ", ".join(
    f"what the number {n} stands for in fairy tales" for n in range(3, 60)
)


async def stream(
    client: httpx.AsyncClient, mesh: Mesh, messages: Messages, **more: Any
) -> tuple[str, dict[str, Any], float]:
    """The text, the usage, and the seconds to the first piece of text."""
    body = {
        "model": mesh.local.model_name,
        "messages": messages,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    started_s, first_s, text, usage = time.perf_counter(), 0.0, "", {}
    async with client.stream("POST", f"{mesh.url}/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            if event.get("usage"):
                usage = event["usage"]
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    first_s = first_s or time.perf_counter() - started_s
                    text += piece
    return text, usage, first_s


async def test_the_second_turn_hits_all_of_the_first_generated_blocks_included(
    mesh: Mesh, reference: Reference
) -> None:
    first: Messages = [{"role": "user", "content": LONG_QUESTION}]
    async with httpx.AsyncClient(timeout=120.0) as client:
        answer, usage, _ = await stream(client, mesh, first, max_tokens=90)
        second = [
            *first,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And which of them do you like best?"},
        ]
        said = [*reference.chat_ids(first), *reference.tokens(reference.chat_ids(first), 90)]
        assert usage["prompt_tokens"] + usage["completion_tokens"] == len(said)
        again = reference.chat_ids(second)
        assert again[: len(said)] == said
        full = len(said) // 64 * 64
        assert full > usage["prompt_tokens"]  # a block with generated tokens is among them

        warm: list[float] = []
        cold: list[float] = []

        async def hits() -> bool:
            # blocks of the answer reach the store in the background, some milliseconds after it
            _, usage, seconds = await stream(client, mesh, second, max_tokens=1)
            warm.append(seconds)
            return int(usage["prompt_tokens_details"]["cached_tokens"]) == full

        await until(hits, 10.0)
        warm.clear()
        for n in range(3):
            await hits()
            _, usage, seconds = await stream(
                client, mesh, second, max_tokens=1, cache_salt=f"cold {n}"
            )
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
            cold.append(seconds)
        assert sorted(warm)[1] < sorted(cold)[1]


async def test_requests_spread_over_both_prefills_and_both_decodes(mesh: Mesh) -> None:
    seen: list[Any] = []

    async def note(_: str, payload: bytes) -> None:
        seen.append(read_audit(payload))

    audits = await mesh.hand.bus.subscribe(f"{mesh.hand.subjects.prefix}.audit.>", note)
    async with httpx.AsyncClient(timeout=120.0) as client:
        await asyncio.gather(
            *(
                stream(
                    client,
                    mesh,
                    [{"role": "user", "content": f"{n}: {LONG_QUESTION}"}],
                    max_tokens=24,
                )
                for n in range(8)
            )
        )
    await until(lambda: len(seen) >= 8)
    await audits.close()
    assert {event.attempts[-1].prefill for event in seen} == {"prefill-1", "prefill-2"}
    assert {event.attempts[-1].decode for event in seen} == {"decode-1", "decode-2"}


async def test_a_prompt_cached_on_one_prefill_and_sent_to_another_is_fetched(
    mesh: Mesh, reference: Reference
) -> None:
    prompt = reference.tokenizer("Fetched. " + LONG_QUESTION, add_special_tokens=False).input_ids
    sampling = SamplingParams(temperature=0, max_tokens=4)
    await mesh.hand.ask(prompt, prefill="prefill-1", decode_id="decode-1", sampling=sampling)
    runs = [PrefixRun(OwnerId("prefill-1"), "hbm", 0, len(prompt) // 64)]
    answer = await mesh.hand.ask(
        prompt, prefill="prefill-2", decode_id="decode-1", sampling=sampling, runs=runs
    )
    assert answer.cached == {"hbm": (len(prompt) - 1) // 64 * 64}
    assert answer.tokens == reference.tokens(prompt, 4)


async def test_32_chats_at_once_all_end_and_leave_nothing(mesh: Mesh) -> None:
    async with httpx.AsyncClient(timeout=300.0, limits=httpx.Limits(max_connections=64)) as client:
        answers = await asyncio.gather(
            *(
                stream(
                    client,
                    mesh,
                    [{"role": "user", "content": f"Name {n + 2} animals, one per line."}],
                    max_tokens=32,
                    ignore_eos=True,
                )
                for n in range(32)
            )
        )
    assert all(usage["completion_tokens"] == 32 for _, usage, _ in answers)
    await until_idle(mesh)


async def test_killing_half_of_32_clients_frees_everything_and_the_others_end(mesh: Mesh) -> None:
    async def chat(client: httpx.AsyncClient, n: int) -> int:
        messages = [{"role": "user", "content": f"{n}. Write a long story about the sea."}]
        _, usage, _ = await stream(client, mesh, messages, max_tokens=40, ignore_eos=True)
        tokens: int = usage["completion_tokens"]
        return tokens

    async def leave_after_some_text(client: httpx.AsyncClient, n: int) -> None:
        body = {
            "model": mesh.local.model_name,
            "messages": [{"role": "user", "content": f"{n}. Write a long story about the moon."}],
            "stream": True,
            "max_tokens": 2000,
            "ignore_eos": True,
        }
        async with client.stream("POST", f"{mesh.url}/v1/chat/completions", json=body) as reply:
            lines = 0
            async for line in reply.aiter_lines():
                lines += line.startswith("data: ")
                if lines > n % 5:
                    return

    async with httpx.AsyncClient(timeout=300.0, limits=httpx.Limits(max_connections=64)) as client:
        staying = [asyncio.create_task(chat(client, n)) for n in range(16)]
        leaving = [asyncio.create_task(leave_after_some_text(client, n)) for n in range(16)]
        await asyncio.gather(*leaving)
        assert await asyncio.gather(*staying) == [40] * 16
    await until_idle(mesh)


async def test_a_client_that_leaves_before_the_first_token_frees_everything(mesh: Mesh) -> None:
    async with httpx.AsyncClient(timeout=60.0) as client:
        for n in range(3):
            body = {
                "model": mesh.local.model_name,
                "messages": [{"role": "user", "content": f"{n} {LONG_QUESTION * 3}"}],
                "max_tokens": 500,
            }
            asking = asyncio.create_task(client.post(f"{mesh.url}/v1/chat/completions", json=body))
            await until_busy(mesh)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            await until_idle(mesh)


async def until_idle(mesh: Mesh) -> None:
    last: list[str] = []

    async def idle() -> bool:
        nonlocal last
        last = await busy(mesh.hand)
        return not last

    try:
        await until(idle, 30.0)
    except AssertionError:
        raise AssertionError(f"still held: {last}") from None


async def until_busy(mesh: Mesh) -> None:
    async def working() -> bool:
        return bool(await busy(mesh.hand))

    await until(working, 20.0)
