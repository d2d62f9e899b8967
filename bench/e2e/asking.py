"""One client of the gateway: streams an answer and notes when each piece came."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Timed:
    text: str = ""
    first_s: float = 0.0  # from the request to the first piece of text
    times_s: list[float] = field(default_factory=list)  # of each event with text
    tokens: int = 0
    cached_tokens: int = 0
    finish: str = ""
    sent_s: float = 0.0  # on time.perf_counter

    @property
    def tokens_per_s(self) -> float:
        return (self.tokens - 1) / (self.times_s[-1] - self.times_s[0])


class Refused(RuntimeError):
    """The mesh refused before any work (HTTP 429)."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"429: {reason}")
        self.reason = reason
        self.retry_after_s = retry_after_s


class Asker:
    def __init__(self, client: httpx.AsyncClient, url: str, model: str) -> None:
        self._client = client
        self._url = url
        self._model = model

    async def complete(self, prompt: Sequence[int], max_tokens: int, **more: Any) -> Timed:
        """A prompt of token ids."""
        body = {"prompt": list(prompt), "max_tokens": max_tokens, **more}
        return await self._stream("/v1/completions", body)

    async def chat(self, text: str, max_tokens: int, **more: Any) -> Timed:
        messages = [{"role": "user", "content": text}]
        return await self._stream(
            "/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, **more}
        )

    async def _stream(self, path: str, body: dict[str, Any]) -> Timed:
        timed = Timed(sent_s=time.perf_counter())
        whole = {
            "model": self._model,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        async with self._client.stream("POST", f"{self._url}{path}", json=whole) as reply:
            if reply.status_code != 200:
                raise _refusal(reply, await reply.aread())
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    self._note(timed, json.loads(line[6:]))
        return timed

    def _note(self, timed: Timed, event: dict[str, Any]) -> None:
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        if usage := event.get("usage"):
            timed.tokens = usage["completion_tokens"]
            timed.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        for choice in event["choices"]:
            timed.finish = choice.get("finish_reason") or timed.finish
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if text:
                now_s = time.perf_counter()
                timed.first_s = timed.first_s or now_s - timed.sent_s
                timed.times_s.append(now_s)
                timed.text += text


def _refusal(reply: httpx.Response, body: bytes) -> RuntimeError:
    if reply.status_code == 429:
        error = json.loads(body)["error"]
        return Refused(str(error.get("code")), float(reply.headers.get("retry-after", 0.0)))
    return RuntimeError(f"{reply.status_code}: {body.decode()}")
