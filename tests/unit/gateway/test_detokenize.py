"""Text from tokens, one at a time, is the text of all tokens at once."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from moonpool.engine.fetch import default_cache_dir
from services.gateway.core.detokenize import Detokenizer, WindowDetokenizer
from services.gateway.text_model import TextModel, load_text_model
from tests.unit.gateway.tiny import tiny_text

TEXTS = [
    "the quick brown fox",
    "月亮很圆，写一首诗",
    "flags 🇩🇪 family 👨‍👩‍👧 and a rocket 🚀!",
    "  leading and   inner spaces\n\n\ttabs ",
    "naïve café — “quotes” …",
    "def add(a, b):\n    return a + b\n",
]
VOCABULARY = tiny_text().vocab_size


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("way", ["bytes", "window"])
def test_pieces_are_whole_characters_and_add_up(way: str, text: str) -> None:
    model = tiny_text()
    ids = model.encode(text, special=False).tolist()
    detokenizer = model.detokenizer() if way == "bytes" else WindowDetokenizer(model.decode)
    pieces = stream(detokenizer, ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=40))
def test_any_tokens_give_what_decoding_all_of_them_gives(ids: list[int]) -> None:
    model = tiny_text()
    assert "".join(stream(model.detokenizer(), ids)) == model.decode(ids)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=40))
def test_the_window_never_gives_half_a_character_too_early(ids: list[int]) -> None:
    model = tiny_text()
    detokenizer = WindowDetokenizer(model.decode)
    text, whole = "", model.decode(ids)
    for id in ids:
        text += detokenizer.push(id)
        if len(ids) <= 16:
            assert whole.startswith(text)
    if len(ids) <= 16:
        assert text + detokenizer.flush() == whole


def test_special_tokens_are_skipped_and_an_unfinished_character_shows_at_the_end() -> None:
    model = tiny_text()
    ids = [1, *model.encode("月", special=False).tolist()[:-1], 2]
    assert stream(model.detokenizer(), ids)[-1] == "\ufffd"
    assert "".join(stream(model.detokenizer(), ids)) == model.decode(ids)


def test_rubbish_bytes_are_shown_in_the_end_and_do_not_pile_up() -> None:
    model = tiny_text()
    [lone] = [id for id in range(VOCABULARY) if model.spell(id)[1] == b"\x80"]
    detokenizer = WindowDetokenizer(model.decode)
    pieces = [detokenizer.push(lone) for _ in range(100)]
    assert len("".join(pieces)) > 50
    assert len(detokenizer._ids) < 50


def metaspace() -> TextModel:
    """A vocabulary with byte fallback, as SentencePiece models have it."""
    words = ["<unk>", "<s>", "</s>", "▁hello", "▁world", "▁", "!", "lo"]
    pieces = words + [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = [(piece, -float(at)) for at, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    make: Any = PreTrainedTokenizerFast
    return TextModel(make(tokenizer_object=tokenizer, eos_token="</s>"))


def test_leading_spaces_and_byte_fallback_come_out_right() -> None:
    model = metaspace()
    first = 8
    ids = [3, 4, *(first + byte for byte in "月🙂".encode()), 6, 5, 3]
    detokenizer = model.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    pieces = stream(detokenizer, ids)
    assert "".join(pieces) == model.decode(ids) == "hello world月🙂!  hello"
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.skipif(
    not (default_cache_dir() / "models" / "smollm2-135m-instruct").is_dir(),
    reason="the default model has not been fetched on this machine",
)
def test_the_default_model_s_text_comes_out_as_it_went_in() -> None:
    model = load_text_model(default_cache_dir() / "models" / "smollm2-135m-instruct")
    for text in TEXTS:
        ids = model.encode(text, special=False).tolist()
        assert "".join(stream(model.detokenizer(), ids)) == text
