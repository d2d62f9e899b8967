"""The model as plain transformers runs it, in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.cli.verify.compare import Position

TOP = 20


def _greedy(**options: Any) -> Any:
    from transformers import GenerationConfig

    make: Any = GenerationConfig
    return make(do_sample=False, **options)


def _without_progress_bar() -> None:
    from transformers.utils import logging

    off: Any = logging.disable_progress_bar
    off()


class Reference:
    """Tokenizes prompts and generates greedily. Loading takes seconds and the model's memory."""

    def __init__(self, folder: Path, dtype: str) -> None:
        from transformers import AutoTokenizer

        self._folder = folder
        self._dtype = dtype
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = None

    def prompt_tokens(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """As the gateway makes them of a chat."""
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    @property
    def dtype(self) -> str:
        """What it computes in; loads the model."""
        return str(self._load().dtype).removeprefix("torch.")

    def generate(self, prompt: Sequence[int], max_tokens: int) -> list[Position]:
        """`max_tokens` positions; an end token does not end it."""
        import torch

        model = self._load()
        config = _greedy(
            max_new_tokens=max_tokens,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = torch.tensor([list(prompt)])
        with torch.inference_mode():
            answer = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), generation_config=config
            )
        made = answer.sequences[0, len(prompt) :].tolist()
        return [
            self._position(token, logits[0])
            for token, logits in zip(made, answer.logits, strict=True)
        ]

    def _position(self, token: int, row: Any) -> Position:
        row = row.float()
        best = row.topk(TOP)
        logprobs = row.log_softmax(-1)
        texts = [(self._text(t), t) for t in best.indices.tolist()]
        return Position(
            token=token,
            text=self._text(token),
            top={text: float(logprobs[t]) for text, t in texts},
            logits={text: float(row[t]) for text, t in texts},
            best_logit=float(best.values[0]),
        )

    def _load(self) -> Any:
        if self._model is None:
            from transformers import AutoModelForCausalLM

            _without_progress_bar()
            self._model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=self._dtype)
            self._model.eval()
            self._model.generation_config = _greedy()  # none of the model's own habits
        return self._model

    def _text(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))
