"""Talking to a gateway: answers, and errors turned into one line."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from moonpool.messages.errors import CallerError, PeerError
from services.cli.options import Target

TIMEOUT = httpx.Timeout(600.0, connect=5.0)


class GatewayRefused(CallerError):
    """The gateway answered with an error; the message is its own."""

    code = "gateway_refused"


class GatewayAway(PeerError):
    code = "gateway_away"


def get_json(target: Target, path: str) -> dict[str, Any]:
    """Raises GatewayRefused or GatewayAway."""
    return _checked(target, "GET", path, None)


def post_json(target: Target, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Raises GatewayRefused or GatewayAway."""
    return _checked(target, "POST", path, body)


def _checked(target: Target, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    try:
        answer = httpx.request(
            method, target.url + path, json=body, headers=target.headers, timeout=TIMEOUT
        )
    except httpx.HTTPError as error:
        raise _away(target, error) from error
    if answer.status_code != 200:
        raise GatewayRefused(error_text(answer.status_code, answer.content))
    decoded: dict[str, Any] = answer.json()
    return decoded


def stream_chat(target: Target, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Chunks of a streamed answer as they come. Raises GatewayRefused or GatewayAway."""
    try:
        with httpx.stream(
            "POST",
            f"{target.url}/v1/chat/completions",
            json=body | {"stream": True},
            headers=target.headers,
            timeout=TIMEOUT,
        ) as answer:
            if answer.status_code != 200:
                raise GatewayRefused(error_text(answer.status_code, answer.read()))
            for line in answer.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise GatewayRefused(str(chunk["error"].get("message", chunk["error"])))
                yield chunk
    except httpx.HTTPError as error:
        raise _away(target, error) from error


def error_text(status: int, content: bytes) -> str:
    """One line from OpenAI's error object, or from whatever else came."""
    try:
        error = json.loads(content)["error"]
        return f"{error['message']} ({status} {error.get('code') or error.get('type')})"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}: {content[:200].decode(errors='replace')}"


def _away(target: Target, error: httpx.HTTPError) -> GatewayAway:
    return GatewayAway(f"{target.url} does not answer: {type(error).__name__}: {error}")
