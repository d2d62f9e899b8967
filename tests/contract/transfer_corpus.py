"""Reads the corpus of frames: text files that say what a peer sends and what must come of it.

Built here from the wire's own layout and not with the library's code, so that the corpus also holds
the layout still. One line, one piece of what is sent (tcp) or one packet (shm):

    raw | hello                      from a stranger, or after a proper greeting
    greeting [epoch=..]              the greeting itself
    head [sealed] [op=] [ranges=] [payload=] [offset=] [length=] [region=] [key=] [flags=] ..
    range OFFSET LENGTH              after the first, which is in the head
    seal                             of all since the frame or the last seal
    message [kind=] [status=] ..     of shm
    bytes COUNT [HEX] | zeros COUNT | same OFFSET COUNT | hex .. | text ..
    cut COUNT | damage PLACE | patch PLACE VALUE
    expect nothing | refused | bad_frame | corrupt
    answer STATUS

Numbers may be `end` (of the region) and powers, with one plus or minus: `end-7`, `2^64-1`.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from xxhash import xxh3_64

CORPUS = Path(__file__).parent / "corpus"
_HEAD = struct.Struct("<4sBBHIQQQ16sQQ")
_MESSAGE = struct.Struct("<4sBBBBQQQQ16s")
_GREETING = struct.Struct("<4sBBH32s")


def files(transport: str) -> list[str]:
    return sorted(path.stem for path in (CORPUS / transport).glob("*.txt"))


@dataclass(frozen=True)
class World:
    """What the lines of a file may refer to."""

    epoch: str
    region: int
    keys: dict[str, bytes]  # "owner" (both rights), "reader", "writer"
    content: bytes  # of the region


@dataclass
class Script:
    """One file, ready to be sent."""

    world: World
    greeted: bool = False
    parts: list[bytes] = field(default_factory=list)
    expect: str = ""
    answer: str = ""
    _sealed_from: int = 0

    def bytes_of(self, *parts: bytes) -> None:
        self.parts += parts

    @property
    def sent(self) -> bytes:
        return b"".join(self.parts)

    def number(self, text: str) -> int:
        match = re.fullmatch(r"(end|2\^\d+|\d+)([+-]\d+)?", text)
        assert match, f"{text!r} is no number"
        base, rest = match[1], int(match[2] or 0)
        if base == "end":
            return len(self.world.content) + rest
        return (2 ** int(base[2:]) if base.startswith("2^") else int(base)) + rest

    # One method per word.

    def do_hello(self) -> None:
        self.greeted = True

    def do_raw(self) -> None:
        pass

    def do_greeting(self, *words: str) -> None:
        epoch = dict(word.split("=") for word in words).get("epoch", self.world.epoch)
        self.bytes_of(_GREETING.pack(b"MPTX", 1, 0, 0, epoch.encode()))

    def do_head(self, *words: str) -> None:
        given = dict(word.split("=") for word in words if "=" in word)
        sealed = "sealed" in words
        values = {k: self.number(v) for k, v in given.items() if k not in ("key", "magic")}
        self._sealed_from = len(self.sent)
        self.bytes_of(
            _HEAD.pack(
                bytes.fromhex(given.get("magic", "4d505453" if sealed else "4d505458")),
                values.get("version", 1),
                values.get("op", 2),
                values.get("flags", int(sealed)),
                values.get("ranges", 1),
                7,
                values.get("region", self.world.region),
                values.get("payload", 8),
                self._key(given.get("key", "owner")),
                values.get("offset", 0),
                values.get("length", 8),
            )
        )

    def do_message(self, *words: str) -> None:
        given = dict(word.split("=") for word in words)
        values = {k: self.number(v) for k, v in given.items() if k not in ("key", "magic")}
        self.bytes_of(
            _MESSAGE.pack(
                bytes.fromhex(given.get("magic", "4d505458")),
                values.get("version", 1),
                values.get("kind", 1),
                values.get("status", 0),
                values.get("rights", 0),
                values.get("region", self.world.region),
                values.get("offset", 0),
                values.get("length", 8),
                0,
                self._key(given.get("key", "owner")),
            )
        )

    def _key(self, name: str) -> bytes:
        return self.world.keys.get(name) or bytes.fromhex(name)

    def do_range(self, offset: str, length: str) -> None:
        self.bytes_of(struct.pack("<QQ", self.number(offset), self.number(length)))

    def do_seal(self) -> None:
        seal = xxh3_64(self.sent[self._sealed_from :]).digest()
        self.bytes_of(seal)
        self._sealed_from = len(self.sent)

    def do_bytes(self, count: str, value: str = "78") -> None:
        self.bytes_of(bytes.fromhex(value) * int(count))

    def do_zeros(self, count: str) -> None:
        self.bytes_of(bytes(int(count)))

    def do_same(self, offset: str, count: str) -> None:
        start = self.number(offset)
        self.bytes_of(self.world.content[start : start + int(count)])

    def do_hex(self, *words: str) -> None:
        self.bytes_of(bytes.fromhex("".join(words)))

    def do_cut(self, count: str) -> None:
        self.parts = [self.sent[: -int(count)]]

    def do_damage(self, place: str) -> None:
        self.do_patch(place, str(self.sent[int(place)] ^ 0x10))

    def do_patch(self, place: str, value: str) -> None:
        damaged = bytearray(self.sent)
        damaged[int(place)] = int(value)
        self.parts = [bytes(damaged)]

    def do_expect(self, what: str) -> None:
        self.expect = what

    def do_answer(self, status: str) -> None:
        self.answer = status


def script(transport: str, name: str, world: World) -> Script:
    """The file, built for `world`. AssertionError names a line that is no good."""
    made = Script(world)
    for line in (CORPUS / transport / f"{name}.txt").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if not word or word == "#":
            continue
        if word == "text":
            made.bytes_of(rest.encode().decode("unicode_escape").encode("latin-1"))
            continue
        do: Callable[..., None] | None = getattr(made, f"do_{word}", None)
        assert do is not None, f"{name}: {line!r}"
        do(*rest.split())
    assert made.expect, f"{name} expects nothing"
    return made
