"""Text from tokens, one at a time: never half a character, and in the end the same text as
decoding everything at once.

Two ways, one seam. Byte-level vocabularies know the bytes of each token: exact, and a few
microseconds. Everything else decodes a short window twice and takes the difference.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
_PENDING_MAX = 16  # tokens without one whole character: more is rubbish, and shown as such

Decode = Callable[[Sequence[int]], str]  # special tokens skipped, nothing cleaned up


class Detokenizer(Protocol):
    def push(self, token: int) -> str:
        """Characters that are complete now; "" while one is under way."""

    def flush(self) -> str:
        """The rest at the end; an unfinished character becomes U+FFFD."""


def byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level vocabularies, back to the byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in kept}
    spare = 0x100
    for byte in range(256):
        if byte not in kept:
            table[chr(spare)] = byte
            spare += 1
    return table


_ALPHABET = byte_alphabet()


def token_bytes(text: str) -> bytes:
    """Bytes of one token of a byte-level vocabulary; added tokens stand for themselves."""
    try:
        return bytes(_ALPHABET[char] for char in text)
    except KeyError:
        return text.encode()


class ByteDetokenizer:
    """For byte-level vocabularies. `table` maps a token to its bytes, b"" for a special one."""

    def __init__(self, table: Callable[[int], bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._table(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For any vocabulary. Decodes from a little before the last text shown, so that decoders that
    look at neighbours (leading spaces, byte fallback) see what they need.

    Tokens `[start, shown)` are context already shown, `[shown, end)` are not complete yet.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0  # 0 <= shown <= len(ids)
        self._context = ""  # decode(ids[:shown])

    def push(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids)
        unfinished = text.endswith(REPLACEMENT)
        if unfinished and len(self._ids) - self._shown <= _PENDING_MAX:
            return ""
        fresh = text[len(self._context) :]
        if not fresh and not unfinished:
            self._ids.pop()  # skipped: it shows nothing and changes nothing
            return ""
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        self._context = self._decode(self._ids)
        return fresh

    def flush(self) -> str:
        return self._decode(self._ids)[len(self._context) :]
