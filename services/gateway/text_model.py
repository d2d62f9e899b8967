"""The model's text side: chat template, tokenizer, and tokens back to text.

It loads the tokenizer's files alone; no model, and where the process was started as a gateway, no
torch either.
"""

import json
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from moonpool.messages.errors import CallerError
from services.gateway.core.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    token_bytes,
)
from services.gateway.core.errors import BadInput


class TokenizerUnusable(CallerError):
    code = "tokenizer_unusable"


class TextModel:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: of transformers. Raises TokenizerUnusable."""
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # around what is not known to be safe
        self._fast: Any = getattr(tokenizer, "backend_tokenizer", None)
        if not hasattr(self._fast, "encode_batch"):
            self._fast = None
        self._special = frozenset(int(id) for id in tokenizer.all_special_ids)
        self._byte_level = False
        if self._fast is not None:
            self._fast.no_truncation()
            self._fast.no_padding()
            added = self._fast.get_added_tokens_decoder()
            self._special = frozenset(id for id, token in added.items() if token.special)
            decoder = json.loads(self._fast.to_str())["decoder"] or {}
            self._byte_level = decoder.get("type") == "ByteLevel"
        self.vocab_size = len(tokenizer)
        self.has_chat_template = bool(tokenizer.chat_template)
        self._shown_bytes = cache(self._token_bytes)

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The chat as the model was trained to read it. Raises BadInput with the template's words
        when it refuses the messages."""
        if not self.has_chat_template:
            raise BadInput(
                "this model has no chat template: use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        try:
            with self._lock:
                text = self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadInput(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        assert isinstance(text, str)
        return text

    def encode(self, text: str, *, special: bool) -> NDArray[np.int32]:
        """[tokens]. `special`: add what the model wants around a plain prompt; a rendered chat has
        it already. Lets other threads run meanwhile."""
        if self._fast is not None:
            ids = self._fast.encode_batch([text], add_special_tokens=special)[0].ids
        else:
            with self._lock:
                ids = self._tokenizer.encode(text, add_special_tokens=special)
        return np.array(ids, dtype="<i4")

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens skipped, nothing cleaned up."""
        if self._fast is not None:
            return str(self._fast.decode(list(ids), skip_special_tokens=True))
        with self._lock:
            return str(
                self._tokenizer.decode(
                    list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
            )

    def detokenizer(self) -> Detokenizer:
        if self._byte_level:
            return ByteDetokenizer(self._shown_bytes)
        return WindowDetokenizer(self.decode)

    def spell(self, id: int) -> tuple[str, bytes]:
        """A token by itself, special ones too, as log probabilities name it."""
        if self._byte_level and id not in self._special:
            raw = self._shown_bytes(id)
            return raw.decode("utf-8", "replace"), raw
        with self._lock:
            text = str(self._tokenizer.decode([id], skip_special_tokens=False))
        return text, text.encode()

    def _token_bytes(self, id: int) -> bytes:
        if id in self._special:
            return b""
        return token_bytes(self._fast.id_to_token(id) or "")


def load_text_model(path: Path) -> TextModel:
    """Takes a second. Raises TokenizerUnusable, which says what is wrong with the folder."""
    from transformers import AutoTokenizer  # slow to import: only where a model is really read

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise TokenizerUnusable(f"no tokenizer can be read from {path}: {error}") from error
    model = TextModel(tokenizer)
    if model.has_chat_template:
        try:
            model.render([{"role": "user", "content": "hello"}])
        except BadInput as error:
            raise TokenizerUnusable(f"{path}: {error.message}") from error
    return model
