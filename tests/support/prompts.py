"""Prompts for equality: short, long, multi-turn, Chinese, code, and around block borders."""

from tests.support.reference import Reference

Messages = list[dict[str, str]]

_STORY = (
    "A fox met a crow that held a piece of cheese. The fox praised the crow's black feathers, and "
    "its bright eyes, and said that surely such a bird must also sing better than all others. "
)
_CODE = (
    "Explain this function:\n\ndef gcd(a: int, b: int) -> int:\n    while b:\n        "
    "a, b = b, a % b\n    return abs(a)\n"
)


def _user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


CHATS: dict[str, Messages] = {
    "one word": _user("Hello"),
    "question": _user("What is the capital of France?"),
    "instruction": _user("List three uses of a paper clip."),
    "chinese": _user("月亮为什么会发光？请用一句话回答。"),
    "chinese long": _user("请把下面的故事翻译成英文：" + "从前有一只狐狸，遇见了一只乌鸦。" * 12),
    "code": _user(_CODE),
    "json": _user('Continue: {"name": "moon", "radius_km": 1737, "phases": ['),
    "numbers": _user("Continue the squares: 1, 4, 9, 16, 25, 36,"),
    "emoji": _user("What do these mean? 🌕🌗🌑 — tell me ✨briefly✨"),
    "story": _user(_STORY * 3 + "What did the fox want?"),
    "long": _user(_STORY * 14 + "Summarise the story in one sentence."),
    "longer": _user(_STORY * 30 + "Who is praised, and for what?"),
    "two turns": [
        {"role": "user", "content": "My name is Ada and I keep bees."},
        {"role": "assistant", "content": "Nice to meet you, Ada! How many hives do you have?"},
        {"role": "user", "content": "Seven. What is my name?"},
    ],
    "system": [
        {"role": "system", "content": "You answer in rhymes."},
        {"role": "user", "content": "Describe the sea."},
    ],
}


def around_borders(reference: Reference) -> dict[str, list[int]]:
    """Token prompts of exactly 63, 64, 65, 127, 128, 129 and 192 tokens (blocks of 64)."""
    ids = reference.tokenizer(_STORY * 12, add_special_tokens=False).input_ids
    return {f"{n} tokens": ids[:n] for n in (63, 64, 65, 127, 128, 129, 192)}


def all_prompts(reference: Reference) -> dict[str, list[int]]:
    """Every prompt as token ids, by name."""
    chats = {name: reference.chat_ids(messages) for name, messages in CHATS.items()}
    return {**chats, **around_borders(reference)}
