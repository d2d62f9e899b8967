"""What both sides are asked: a built-in set, or a file of the user's own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moonpool.messages.errors import CallerError

PROMPTS_MAX = 1000


class BadPrompts(CallerError):
    code = "bad_prompts"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to be continued; the chat template turns it into tokens."""

    name: str
    messages: tuple[dict[str, str], ...]


def _asked(name: str, *texts: str) -> Prompt:
    roles = ("user", "assistant")
    turns = tuple({"role": roles[at % 2], "content": text} for at, text in enumerate(texts))
    return Prompt(name, turns)


_FABLE = (
    "A crow, half dead with thirst, came upon a pitcher which had once been full of water. "
    "But when the crow put its beak into the mouth of the pitcher it found that only very little "
    "water was left in it, and that it could not reach far enough down to get at it. "
)
_CODE = """\
def merge(left, right):
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i]); i += 1
        else:
            result.append(right[j]); j += 1
    return result
"""

BUILTIN: tuple[Prompt, ...] = (
    _asked("one word", "Hi"),
    _asked("short", "What is the capital of France?"),
    _asked("chinese", "请用一句话解释什么是月亮池，以及为什么它会发光。"),
    _asked("code", f"What is missing in this function, and why?\n\n{_CODE}"),
    _asked("numbers", "Continue: " + " ".join(str(n * n) for n in range(1, 120))),
    _asked(
        "three turns",
        "My name is Ada and I keep bees.",
        "Nice to meet you, Ada! How many hives do you have?",
        "Seven. What is my name, and how many hives do I keep?",
    ),
    _asked("long", _FABLE * 12 + "What did the crow want?"),
    _asked("longer than a chunk", _FABLE * 30 + "Tell the story's end in your own words."),
)


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt a line: plain text, or JSON with `prompt` or `messages`. Raises BadPrompts."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadPrompts(f"{path}: {error}") from error
    prompts = [_read(line, f"{path.name}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        raise BadPrompts(f"{path} holds {len(prompts)} prompts; 1 to {PROMPTS_MAX} are possible")
    return prompts


def _read(line: str, name: str) -> Prompt:
    if not line.lstrip().startswith("{"):
        return _asked(name, line)
    try:
        given: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise BadPrompts(f"{name}: neither plain text nor JSON: {error}") from error
    if isinstance(given.get("prompt"), str):
        return _asked(name, given["prompt"])
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages or not _all_texts(messages):
        raise BadPrompts(f"{name}: needs `prompt`, a text, or `messages` with roles and contents")
    return Prompt(name, tuple({"role": m["role"], "content": m["content"]} for m in messages))


def _all_texts(messages: Sequence[Any]) -> bool:
    return all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in messages
    )
