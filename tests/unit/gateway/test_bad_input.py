"""Whatever is wrong with a request: the right status, OpenAI's error object, the field's name."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.unit.gateway.house import House, open_house
from tests.unit.gateway.scripts import CONTEXT_TOKENS, MODEL

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    async with open_house(port=True, body_max_bytes=200_000) as opened:
        yield opened


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HELLO, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello", **fields}


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return dict(body["error"])


pytestmark = pytest.mark.asyncio(loop_scope="module")

BAD_BODIES = [
    b"",
    b"{",
    b"[1, 2]",
    b'"text"',
    b"null",
    b"\xff\xfe{}",
    b'{"model": "\xc3\x28"}',
    b'{"model": "\\ud800", "messages": []}',
    b'{"temperature": NaN}',
    b'{"temperature": Infinity}',
    b'{"temperature": 1e999}',
    b"[" * 100_000,
    b'{"a":' * 30_000,
    b"{'model': 'x'}",
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:24]))
async def test_a_body_that_is_no_json_object_is_refused(house: House, body: bytes) -> None:
    response = await house.http.post(CHAT, content=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "invalid_json"
    assert error["type"] == "invalid_request_error"


BAD_FIELDS = [
    ("temperature", -0.1),
    ("temperature", 2.5),
    ("temperature", "0.5"),
    ("temperature", True),
    ("temperature", [1]),
    ("top_p", 0),
    ("top_p", 1.5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -1),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("seed", 2**64),
    ("seed", 1.5),
    ("seed", "7"),
    ("stop", 5),
    ("stop", [5]),
    ("stop", ""),
    ("stop", [""]),
    ("stop", ["x"] * 17),
    ("stop", {"a": 1}),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", 1.5),
    ("max_tokens", "10"),
    ("max_tokens", 10**30),
    ("min_tokens", -1),
    ("ignore_eos", "yes"),
    ("n", 2),
    ("n", 0),
    ("stream", "true"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),
    ("stream_options", 5),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("cache_salt", ""),
    ("cache_salt", 5),
    ("user", 5),
    ("logit_bias", {"5": 100}),
    ("best_of", 2),
    ("model", 5),
    ("model", ""),
    ("model", None),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
@pytest.mark.parametrize("route", [CHAT, TEXT])
async def test_a_bad_value_is_refused_by_the_name_of_its_field(
    house: House, route: str, field: str, value: Any
) -> None:
    body = chat(**{field: value}) if route == CHAT else text(**{field: value})
    response = await house.http.post(route, json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"].split("[")[0].split(".")[0] == field
    assert field in error["message"]


BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    (
        {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[1].content",
    ),
    ({"messages": [*HELLO, {"role": "system", "content": "late"}]}, "messages"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"min_tokens": 50, "max_tokens": 10}, "min_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHATS)
async def test_a_bad_chat_is_refused_by_the_name_of_its_field(
    house: House, fields: dict[str, Any], param: str
) -> None:
    response = await house.http.post(CHAT, json=chat(**fields))
    assert response.status_code == 400
    assert error_of(response)["param"] == param


BAD_PROMPTS = [
    "",
    [],
    [[]],
    5,
    None,
    {"a": 1},
    ["one", "two"],
    [[1, 2], [3]],
    [1, "two"],
    [1, True],
    [1.5],
    [-1],
    [10**9],
    [2**70],
]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=repr)
async def test_a_bad_prompt_is_refused(house: House, prompt: Any) -> None:
    response = await house.http.post(TEXT, json=text(prompt=prompt))
    assert response.status_code == 400
    assert error_of(response)["param"] in ("prompt", None)


@pytest.mark.parametrize("fields", [{"logprobs": 21}, {"logprobs": -1}, {"logprobs": True}])
async def test_bad_log_probabilities_of_a_completion_are_refused(
    house: House, fields: dict[str, Any]
) -> None:
    response = await house.http.post(TEXT, json=text(**fields))
    assert response.status_code == 400
    assert error_of(response)["param"] == "logprobs"


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (CHAT, chat(messages=[{"role": "user", "content": "word " * 2000}]), "messages"),
        (TEXT, text(prompt="word " * 2000), "prompt"),
        (TEXT, text(prompt=[5] * CONTEXT_TOKENS), "prompt"),
        (TEXT, text(max_tokens=CONTEXT_TOKENS), "prompt"),
        (CHAT, chat(max_completion_tokens=2**31 - 1), "messages"),
    ],
)
async def test_what_goes_beyond_the_context_is_refused(
    house: House, route: str, body: dict[str, Any], param: str
) -> None:
    response = await house.http.post(route, json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == param
    assert str(CONTEXT_TOKENS) in error["message"]


async def test_an_unknown_model_is_not_found(house: House) -> None:
    response = await house.http.post(CHAT, json=chat(model="other"))
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


async def test_a_missing_field_is_named(house: House) -> None:
    response = await house.http.post(CHAT, json={"messages": HELLO})
    error = error_of(response)
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


async def test_a_body_over_the_limit_is_refused_and_the_connection_lives_on(house: House) -> None:
    big = json.dumps(chat(messages=[{"role": "user", "content": "x" * 300_000}])).encode()

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(big), 50_000):
            yield big[start : start + 50_000]

    for content in (big, parts()):
        response = await house.http.post(CHAT, content=content)
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
    assert (await house.chat()).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "route_not_found"),
        ("POST", "/v1/embeddings", 404, "route_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
        ("GET", "/v1/models/some/none", 404, "model_not_found"),
    ],
)
async def test_wrong_routes_get_the_error_object_too(
    house: House, method: str, path: str, status: int, code: str
) -> None:
    response = await house.http.request(method, path)
    assert response.status_code == status
    assert error_of(response)["code"] == code


@pytest.mark.parametrize(
    "fields",
    [
        {"some_unknown_field": {"a": 1}},
        {"n": 1, "logit_bias": {}, "response_format": {"type": "text"}, "tools": []},
        {"temperature": None, "stop": None, "seed": None, "max_tokens": None},
        {"temperature": 0, "top_k": -1, "seed": -5, "user": "me", "cache_salt": "mine"},
        {"stop": ["a"] * 16},
        {"stop": []},
        {"ignore_eos": True, "min_tokens": 2, "min_p": 0.1, "repetition_penalty": 1.1},
        {"store": True, "metadata": {}, "service_tier": "auto", "reasoning_effort": "low"},
    ],
)
async def test_what_changes_nothing_or_is_unknown_is_taken(
    house: House, fields: dict[str, Any]
) -> None:
    response = await house.http.post(CHAT, json=chat(**fields))
    assert response.status_code == 200, response.text


async def test_nothing_is_left_behind_by_bad_requests(house: House) -> None:
    await house.empties()
    assert house.gateway.context.metrics.snapshot(
        service="gateway", id="g1", epoch="1", unix_s=0, uptime_s=0
    )
