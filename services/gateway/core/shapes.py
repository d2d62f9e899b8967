"""What goes back to the client: OpenAI's objects, whole or as server-sent events.

A stream's events differ in little but their text, so that the rest is made once per request.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from moonpool.messages.tokens import TokenLogprobs
from services.gateway.core.answer import Piece

DONE = b"data: [DONE]\n\n"

Spell = Callable[[int], tuple[str, bytes]]  # a token's text and its bytes

_json = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _json(value) + b"\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Shape(Protocol):
    """The wire form of one answer."""

    def first(self) -> bytes:
        """What opens the stream; b"" for nothing."""

    def piece(self, piece: Piece) -> bytes: ...

    def last(self, finish: str) -> bytes:
        """Why it ended."""

    def totals(self, usage: dict[str, Any]) -> bytes:
        """The usage event, for who asked for it."""

    def whole(self, pieces: list[Piece], finish: str, usage: dict[str, Any]) -> bytes: ...


class _Frame:
    """What every object of one answer has in common."""

    def __init__(
        self,
        head: dict[str, Any],  # id, created, model, system_fingerprint
        kinds: tuple[str, str],  # object names: whole, chunk
        spell: Spell,
        with_usage: bool,
        with_ids: bool,
    ) -> None:
        self._with_ids = with_ids
        self._head = head
        self._kinds = kinds
        self._spell = spell
        self._tail = {"usage": None} if with_usage else {}
        marker = "\x00"
        self._before, self._after = event(self._chunk([marker])).split(_json(marker))

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        named = self._head | {"object": self._kinds[1], "choices": choices}
        return named | self._tail

    def _one(self, choice: bytes) -> bytes:
        return self._before + choice + self._after

    def totals(self, usage: dict[str, Any]) -> bytes:
        return event(self._chunk([]) | {"usage": usage})

    def _choice(
        self, name: str, value: Any, logprobs: Any, finish: str | None, pieces: list[Piece]
    ) -> dict[str, Any]:
        choice = {"index": 0, name: value, "logprobs": logprobs, "finish_reason": finish}
        if self._with_ids:
            choice["token_ids"] = [token for piece in pieces for token in piece.tokens]
        return choice

    def _whole(self, choice: dict[str, Any], usage: dict[str, Any]) -> bytes:
        named = self._head | {"object": self._kinds[0], "choices": [choice], "usage": usage}
        return _json(named)


class ChatShape(_Frame):
    def __init__(
        self, head: dict[str, Any], spell: Spell, with_usage: bool, with_ids: bool = False
    ) -> None:
        kinds = ("chat.completion", "chat.completion.chunk")
        super().__init__(head, kinds, spell, with_usage, with_ids)

    def first(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self._one(_json(self._choice("delta", delta, None, None, [])))

    def piece(self, piece: Piece) -> bytes:
        if not piece.tokens:
            return self._one(
                b'{"index":0,"delta":{"content":'
                + _json(piece.text)
                + b'},"logprobs":null,"finish_reason":null}'
            )
        logprobs = self._logprobs([piece])
        return self._one(
            _json(self._choice("delta", {"content": piece.text}, logprobs, None, [piece]))
        )

    def last(self, finish: str) -> bytes:
        return self._one(_json(self._choice("delta", {}, None, finish, [])))

    def whole(self, pieces: list[Piece], finish: str, usage: dict[str, Any]) -> bytes:
        text = "".join(piece.text for piece in pieces)
        message = {"role": "assistant", "content": text, "refusal": None}
        logprobs = self._logprobs(pieces)
        return self._whole(self._choice("message", message, logprobs, finish, pieces), usage)

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any] | None:
        content = [
            self._named(token, each.chosen)
            | {"top_logprobs": list(map(self._named, each.top_ids, each.top))}
            for piece in pieces
            for token, each in _pairs_of(piece)
        ]
        return {"content": content, "refusal": None} if content else None

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text, raw = self._spell(token)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(raw)}


class CompletionShape(_Frame):
    def __init__(
        self, head: dict[str, Any], spell: Spell, with_usage: bool, with_ids: bool = False
    ) -> None:
        kinds = ("text_completion", "text_completion")
        super().__init__(head, kinds, spell, with_usage, with_ids)
        self._shown_chars = 0  # of earlier pieces

    def first(self) -> bytes:
        return b""

    def piece(self, piece: Piece) -> bytes:
        logprobs = self._logprobs([piece])
        return self._one(_json(self._choice("text", piece.text, logprobs, None, [piece])))

    def last(self, finish: str) -> bytes:
        return self._one(_json(self._choice("text", "", None, finish, [])))

    def whole(self, pieces: list[Piece], finish: str, usage: dict[str, Any]) -> bytes:
        text = "".join(piece.text for piece in pieces)
        logprobs = self._logprobs(pieces)
        return self._whole(self._choice("text", text, logprobs, finish, pieces), usage)

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any] | None:
        pairs: list[tuple[int, TokenLogprobs]] = [
            pair for piece in pieces for pair in _pairs_of(piece)
        ]
        if not pairs:
            return None
        tokens, offsets = [], []
        for token, _ in pairs:
            text = self._spell(token)[0]
            tokens.append(text)
            offsets.append(self._shown_chars)
            self._shown_chars += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [max(each.chosen, -9999.0) for _, each in pairs],
            "top_logprobs": [
                {self._spell(id)[0]: max(value, -9999.0) for id, value in _pairs(e)}
                for _, e in pairs
            ],
            "text_offset": offsets,
        }


def _pairs_of(piece: Piece) -> list[tuple[int, TokenLogprobs]]:
    """Tokens with their log probabilities, when those were asked for."""
    return list(zip(piece.tokens, piece.logprobs, strict=True)) if piece.logprobs else []


def _pairs(logprobs: TokenLogprobs) -> list[tuple[int, float]]:
    return list(zip(logprobs.top_ids, logprobs.top, strict=True))
