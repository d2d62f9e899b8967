"""OpenAI's own client works against the gateway unchanged."""

import openai
import pytest

from moonpool.messages.errors import Blame, ErrorInfo
from moonpool.messages.tokens import TokenLogprobs
from tests.unit.gateway.house import ANSWER, House, answer_tokens, open_house
from tests.unit.gateway.scripts import MODEL, refusal
from tests.unit.gateway.tiny import tiny_text

HELLO = [{"role": "user", "content": "hello"}]


async def test_a_chat_is_answered_whole() -> None:
    async with open_house() as house:
        house.mesh.cached = {"hbm": 4, "dram": 3}
        done = await house.sdk.chat.completions.create(model=MODEL, messages=HELLO)
        assert done.choices[0].message.content == ANSWER
        assert done.choices[0].message.role == "assistant"
        assert done.choices[0].finish_reason == "stop"
        assert done.usage is not None
        assert done.usage.completion_tokens == len(answer_tokens())
        assert done.usage.prompt_tokens == house.mesh.plans[0].prompt_tokens
        assert done.usage.prompt_tokens_details.cached_tokens == 7
        assert done.system_fingerprint == "fp_000102030405"
        assert done.object == "chat.completion"
        await house.empties()


async def test_a_chat_streams_role_text_reason_and_usage_in_this_order() -> None:
    async with open_house(port=True) as house:
        stream = await house.sdk.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


async def test_a_completion_is_answered_whole_and_as_a_stream() -> None:
    async with open_house() as house:
        done = await house.sdk.completions.create(model=MODEL, prompt="hello", max_tokens=64)
        assert done.choices[0].text == ANSWER
        stream = await house.sdk.completions.create(
            model=MODEL, prompt=[5, 6, 7], max_tokens=64, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks) == ANSWER
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_max_tokens_ends_an_answer_with_length() -> None:
    async with open_house() as house:
        done = await house.sdk.completions.create(model=MODEL, prompt=["hello"], max_tokens=3)
    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens == 3


@pytest.mark.parametrize("stop", ["END", ["nowhere", "dog", "END"], ["月亮 🙂"]])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_an_answer_before_it(stop: str | list[str], stream: bool) -> None:
    first = min(ANSWER.find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in ANSWER)
    async with open_house() as house:
        text = await _text(house, stream, stop=stop)
        assert text == ANSWER[:first]
        await house.empties()
        assert [c.attempt for c in house.mesh.instances["d1"].cancels] == [0]


async def _text(house: House, stream: bool, **fields: object) -> str:
    if not stream:
        done = await house.sdk.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            **fields,
        )
        return done.choices[0].message.content or ""
    chunks = await house.sdk.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        stream=True,
        **fields,
    )
    parts = [c.choices[0].delta.content or "" async for c in chunks if c.choices]
    return "".join(parts)


async def test_log_probabilities_of_a_chat_name_every_token() -> None:
    async with open_house() as house:
        house.mesh.logprobs = lambda token: TokenLogprobs(-0.5, (token, 5), (-0.5, -1.5))
        done = await house.sdk.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            logprobs=True,
            top_logprobs=2,
        )
        assert house.mesh.instances["p1"].submits[0].sampling.logprobs == 2
    content = done.choices[0].logprobs.content
    assert content is not None
    assert len(content) == len(answer_tokens())
    raw = b"".join(bytes(each.bytes or []) for each in content[:-1])
    assert raw.decode() == ANSWER
    assert [t.logprob for t in content[0].top_logprobs] == [-0.5, -1.5]


async def test_log_probabilities_of_a_streamed_completion_come_with_its_text() -> None:
    async with open_house() as house:
        house.mesh.logprobs = lambda token: TokenLogprobs(-0.5, (token,), (-0.5,))
        stream = await house.sdk.completions.create(
            model=MODEL, prompt="hello", max_tokens=64, logprobs=1, stream=True
        )
        named = [c.choices[0].logprobs async for c in stream]
    tokens = [t for each in named if each is not None for t in each.tokens or []]
    assert len(tokens) == len(answer_tokens())


async def test_models_are_listed_and_found() -> None:
    async with open_house(port=True) as house:
        listed = [model.id async for model in house.sdk.models.list()]
        assert listed == [MODEL]
        assert (await house.sdk.models.retrieve(MODEL)).owned_by == "moonpool"
        with pytest.raises(openai.NotFoundError):
            await house.sdk.models.retrieve("other")


async def test_an_unknown_model_raises_not_found() -> None:
    async with open_house() as house:
        with pytest.raises(openai.NotFoundError) as caught:
            await house.sdk.chat.completions.create(model="nope", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize("code", ["ttft", "tbt", "kv_space", "quota", "draining"])
async def test_a_refusal_raises_rate_limit_with_reason_and_retry_after(code: str) -> None:
    async with open_house() as house:
        house.mesh.plan_refusal = refusal(code, retry_after_s=2.2)
        with pytest.raises(openai.RateLimitError) as caught:
            await house.sdk.chat.completions.create(model=MODEL, messages=HELLO)
        assert caught.value.code == code
        assert caught.value.response.headers["retry-after"] == "3"
        await house.empties()


async def test_an_error_in_mid_stream_is_one_event_that_the_client_raises() -> None:
    async with open_house(port=True) as house:
        decode = house.mesh.instances["d1"]
        decode.fails_before = 3
        decode.failure = ErrorInfo("boom", Blame.BUG, "something broke for good")
        stream = await house.sdk.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            stream=True,
        )
        with pytest.raises(openai.APIError) as caught:
            _ = [chunk async for chunk in stream]
        assert caught.value.code == "boom"
        await house.empties()


async def test_the_prompt_is_the_chat_template_s_text() -> None:
    async with open_house() as house:
        messages = [
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}],
            },
        ]
        await house.sdk.chat.completions.create(model=MODEL, messages=messages)
        sent = house.mesh.instances["p1"].submits[0]
    expected = (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert sent.tokens == tiny_text().encode(expected, special=False).tobytes()


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_come_exactly_as_the_model_gave_them(stream: bool) -> None:
    async with open_house() as house:
        asked = {"return_token_ids": True}
        reply = await house.sdk.completions.create(
            model=MODEL, prompt="hello", max_tokens=64, stream=stream, extra_body=asked
        )
        chunks = [chunk async for chunk in reply] if stream else [reply]
    ids = [id for chunk in chunks for choice in chunk.choices for id in choice.token_ids]
    assert ids == answer_tokens()
