"""Prefill, decode and colocated instances with a real (tiny) model and real shared memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from moonpool.bus import Endpoint
from moonpool.kv import block_keys, unpack_keys
from moonpool.messages.codec import decode, encode
from moonpool.messages.ids import OwnerId
from moonpool.messages.plan import PrefixRun
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.store import PromoteReply, PromoteRequest
from tests.support.instances import Hand, instances
from tests.support.tiny_models import TINY, save_tiny
from tests.support.until import until

Generate = Callable[[Sequence[int], int], list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(TINY["llama"], tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(model: Path) -> Generate:
    reference = AutoModelForCausalLM.from_pretrained(model).eval()

    def generate(prompt: Sequence[int], tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        out = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
        )
        return out[0, len(prompt) :].tolist()

    return generate


@pytest.fixture
async def mesh(model: Path, tmp_path: Path) -> AsyncIterator[Hand]:
    roles = {"p1": "prefill", "p2": "prefill", "d1": "decode", "c1": "colocated"}
    async with instances(model, tmp_path, **roles) as hand:
        yield hand


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 250, length).tolist()


async def test_every_way_through_gives_what_generate_gives(mesh: Hand, expected: Generate) -> None:
    for length in (1, 15, 16, 17, 31, 32, 33, 100):
        prompt = prompt_of(length, seed=length)
        want = expected(prompt, 20)
        sampling = SamplingParams(temperature=0, max_tokens=20)
        split = await mesh.ask(prompt, prefill="p1", decode_id="d1", sampling=sampling)
        assert split.tokens == want, length
        colocated = await mesh.ask(prompt, prefill="c1", decode_id="c1", sampling=sampling)
        assert colocated.tokens == want, length
        again = await mesh.ask(prompt, prefill="p1", decode_id="d1", sampling=sampling)
        assert again.tokens == want, length
        assert again.cached.get("hbm", 0) == (length - 1) // 16 * 16


async def test_a_prefix_cached_on_one_prefill_is_fetched_by_another(
    mesh: Hand, expected: Generate
) -> None:
    prompt = prompt_of(100, seed=7)
    await mesh.ask(prompt, prefill="p1", decode_id="d1")
    runs = [PrefixRun(OwnerId("p1"), "hbm", 0, 6)]
    fetched = await mesh.ask(prompt, prefill="p2", decode_id="d1", runs=runs)
    assert fetched.tokens == expected(prompt, 8)
    assert fetched.cached == {"hbm": 96}
    assert fetched.events[0].source == "p2"


async def test_an_owner_that_is_gone_or_forgot_costs_only_its_blocks(
    mesh: Hand, expected: Generate
) -> None:
    prompt = prompt_of(80, seed=8)
    runs = [PrefixRun(OwnerId("nobody"), "dram", 0, 5)]
    assert (await mesh.ask(prompt, prefill="p1", decode_id="d1", runs=runs)).tokens == expected(
        prompt, 8
    )
    prompt = prompt_of(80, seed=9)
    runs = [PrefixRun(OwnerId("p2"), "hbm", 0, 5)]
    answer = await mesh.ask(prompt, prefill="p1", decode_id="d1", runs=runs)
    assert answer.tokens == expected(prompt, 8)
    assert answer.cached == {}


async def test_many_requests_at_once_share_steps_and_keep_their_answers(
    mesh: Hand, expected: Generate
) -> None:
    prompts = [prompt_of(5 + 9 * i, seed=20 + i) for i in range(8)]
    begun = [
        await mesh.begin(p, prefill=f"p{1 + i % 2}", decode_id="d1") for i, p in enumerate(prompts)
    ]
    await until(lambda: all(answer.finish for answer, _ in begun), 60.0)
    for prompt, (answer, _) in zip(prompts, begun, strict=True):
        assert answer.tokens == expected(prompt, 8)


async def test_a_continued_answer_goes_on_where_it_stopped(mesh: Hand, expected: Generate) -> None:
    prompt = prompt_of(40, seed=3)
    want = expected(prompt, 12)
    answer = await mesh.ask(
        [*prompt, *want[:5]],
        prefill="p1",
        decode_id="d1",
        output_start=40,
        attempt=1,
        sampling=SamplingParams(temperature=0, max_tokens=12),
    )
    assert answer.tokens == want[5:]
    assert answer.events[0].index == 5


async def test_a_cancelled_request_frees_every_block(mesh: Hand) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    answer, request = await mesh.begin(
        prompt_of(60, seed=5), prefill="p1", decode_id="d1", sampling=sampling
    )
    await until(lambda: len(answer.tokens) > 3, 20.0)
    await mesh.cancel(request, prefill="p1", decode_id="d1")
    seen = len(answer.events)
    other = await mesh.ask(prompt_of(10, seed=6), prefill="p1", decode_id="d1")
    assert other.finish
    assert len(answer.events) <= seen + 1


async def test_a_prefix_of_more_blocks_than_a_session_holds_is_fetched_in_parts(
    model: Path, tmp_path: Path, expected: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.instance.fetch.KEYS_MAX", 2)
    roles = {"p1": "prefill", "p2": "prefill", "d1": "decode"}
    async with instances(model, tmp_path, **roles) as hand:
        prompt = prompt_of(100, seed=11)
        await hand.ask(prompt, prefill="p1", decode_id="d1")
        runs = [PrefixRun(OwnerId("p1"), "hbm", 0, 6)]
        fetched = await hand.ask(prompt, prefill="p2", decode_id="d1", runs=runs)
        assert fetched.tokens == expected(prompt, 8)
        assert fetched.cached == {"hbm": 96}


async def test_blocks_in_lower_tiers_are_sent_for_before_the_prompt_has_its_turn(
    mesh: Hand, expected: Generate
) -> None:
    asked: list[PromoteRequest] = []

    async def promote(payload: bytes) -> bytes:
        asked.append(decode(payload, PromoteRequest))
        return encode(PromoteReply(0))

    endpoint = Endpoint("promote", mesh.subjects.store("s1", "promote"), promote)
    await mesh.bus.serve("store", "s1", "0", [endpoint])
    prompt = prompt_of(100, seed=11)
    runs = [
        PrefixRun(OwnerId("s1"), "dram", 0, 2),
        PrefixRun(OwnerId("s1"), "nvme", 2, 5),
        PrefixRun(OwnerId("nobody"), "oss", 5, 6),
    ]
    answer = await mesh.ask(prompt, prefill="p1", decode_id="d1", runs=runs)
    assert answer.tokens == expected(prompt, 8)
    keys = block_keys(mesh.root, prompt, mesh.block_tokens)
    assert [(unpack_keys(each.keys), each.run_blocks) for each in asked] == [(keys[2:5], 6)]


async def test_blocks_in_dram_are_spoken_for_while_prompts_stand_in_a_queue(mesh: Hand) -> None:
    asked: list[PromoteRequest] = []

    async def promote(payload: bytes) -> bytes:
        asked.append(decode(payload, PromoteRequest))
        return encode(PromoteReply(0))

    endpoint = Endpoint("promote", mesh.subjects.store("s1", "promote"), promote)
    await mesh.bus.serve("store", "s1", "0", [endpoint])
    prompts = [prompt_of(100, seed=seed) for seed in range(8)]
    runs = [PrefixRun(OwnerId("s1"), "dram", 0, 2), PrefixRun(OwnerId("p2"), "hbm", 2, 3)]
    async with asyncio.TaskGroup() as group:
        for prompt in prompts:
            group.create_task(mesh.ask(prompt, prefill="p1", decode_id="d1", runs=runs))
    heads = [block_keys(mesh.root, prompt, mesh.block_tokens)[:2] for prompt in prompts]
    assert asked
    assert all(unpack_keys(each.keys) in heads for each in asked)
