"""Greedy output through the mesh equals transformers' generate, whatever way the KV came."""

import asyncio

import httpx
import pytest

from moonpool.client.blocks import BlockStore
from moonpool.kv import block_keys
from moonpool.messages.ids import OwnerId
from moonpool.messages.plan import PrefixRun
from moonpool.messages.sampling import SamplingParams
from tests.e2e.conftest import Mesh
from tests.support.instances import TENANT
from tests.support.prompts import CHATS, all_prompts
from tests.support.reference import Reference
from tests.support.until import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)


async def complete(mesh: Mesh, prompt: list[int]) -> str:
    async with httpx.AsyncClient(timeout=120.0) as client:
        reply = await client.post(
            f"{mesh.url}/v1/completions",
            json={
                "model": mesh.local.model_name,
                "prompt": prompt,
                "max_tokens": TOKENS,
                "temperature": 0,
            },
        )
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


async def test_cold_and_again_through_the_gateway(mesh: Mesh, reference: Reference) -> None:
    prompts = all_prompts(reference)
    assert len(prompts) >= 20
    for name, prompt in prompts.items():
        want = reference.text(reference.tokens(prompt, TOKENS))
        assert await complete(mesh, prompt) == want, f"cold: {name}"
        assert await complete(mesh, prompt) == want, f"cached: {name}"


async def test_chats_use_the_models_own_template(mesh: Mesh, reference: Reference) -> None:
    async with httpx.AsyncClient(timeout=120.0) as client:
        for name in ("question", "chinese", "two turns", "system", "emoji"):
            messages = CHATS[name]
            reply = await client.post(
                f"{mesh.url}/v1/chat/completions",
                json={
                    "model": mesh.local.model_name,
                    "messages": messages,
                    "max_tokens": TOKENS,
                    "temperature": 0,
                },
            )
            want = reference.text(reference.tokens(reference.chat_ids(messages), TOKENS))
            assert reply.json()["choices"][0]["message"]["content"] == want, name


async def test_all_at_once_in_one_batch(mesh: Mesh, reference: Reference) -> None:
    prompts = all_prompts(reference)
    texts = await asyncio.gather(*(complete(mesh, prompt) for prompt in prompts.values()))
    for (name, prompt), text in zip(prompts.items(), texts, strict=True):
        assert text == reference.text(reference.tokens(prompt, TOKENS)), name


async def test_token_for_token_from_the_local_pool(mesh: Mesh, reference: Reference) -> None:
    for name, prompt in all_prompts(reference).items():
        for _ in range(2):
            answer = await mesh.hand.ask(
                prompt, prefill="prefill-1", decode_id="decode-1", sampling=GREEDY
            )
            assert answer.tokens == reference.tokens(prompt, TOKENS), name
        assert answer.cached.get("hbm", 0) == (len(prompt) - 1) // 64 * 64, name


@pytest.mark.parametrize(
    ("writer", "store", "reader", "decode"),
    [
        ("prefill-1", "store-2", "prefill-2", "decode-2"),  # written by TCP, read by shm
        ("prefill-2", "store-1", "prefill-1", "decode-2"),  # as above, handed over by TCP
        ("prefill-1", "store-1", "prefill-2", "decode-1"),  # read by TCP
    ],
)
async def test_token_for_token_from_a_store_node(
    mesh: Mesh, reference: Reference, writer: str, store: str, reader: str, decode: str
) -> None:
    blocks = BlockStore(mesh.hand.bus, None, mesh.hand.subjects)  # type: ignore[arg-type]
    for name, base in all_prompts(reference).items():
        # a beginning of its own, so that no pool has seen any of its blocks before
        mark = f"{name} from {writer} by {store} to {reader}: "
        prompt = [*reference.tokenizer(mark, add_special_tokens=False).input_ids, *base]
        full = len(prompt) // 64
        usable = (len(prompt) - 1) // 64
        first = await mesh.hand.ask(
            prompt, prefill=writer, decode_id="decode-1", store=store, sampling=GREEDY
        )
        assert first.tokens == reference.tokens(prompt, TOKENS), f"written: {name}"
        if not full:
            continue
        keys = block_keys(mesh.hand.root, prompt, 64)

        async def stored(keys=keys) -> bool:  # type: ignore[no-untyped-def]
            return all(await blocks.exist(store, TENANT, keys))

        await until(stored)
        runs = [PrefixRun(OwnerId(store), "dram", 0, full)]
        answer = await mesh.hand.ask(
            prompt, prefill=reader, decode_id=decode, runs=runs, sampling=GREEDY
        )
        assert answer.tokens == reference.tokens(prompt, TOKENS), f"read: {name}"
        assert sum(answer.cached.values()) == usable * 64, name
        if usable:
            assert answer.cached == {"dram": usable * 64}, name
