"""What plain transformers says: the text and tokens that the mesh must equal."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Reference:
    """`generate`, greedy, with the model's own attention and cache."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self._known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def tokens(self, prompt: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens after `prompt`, the end token included."""
        key = (tuple(prompt), count)
        if key not in self._known:
            ids = torch.tensor([list(prompt)])
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=self.tokenizer.eos_token_id,
            )
            self._known[key] = out[0, len(prompt) :].tolist()
        return self._known[key]

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The prompt that the chat template makes."""
        text = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))
