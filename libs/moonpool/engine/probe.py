"""Trying a model out at load: what shape is its KV, and does our attention equal its own?

A model that answers differently over blocks is refused here, by name, and never serves a request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache

from moonpool.engine.base import Piece
from moonpool.engine.errors import UnsupportedModel
from moonpool.engine.hf_model import LoadedModel
from moonpool.engine.paged_step import ATTENTION, STEP_ARGUMENT

# What a layer may tell its attention without asking for another computation.
_HARMLESS = {
    "dropout", "sliding_window", "is_causal", "position_ids", "use_cache", "output_attentions",
    "output_hidden_states", "cache_position", "logits_to_keep", "return_dict", "layer_idx",
    STEP_ARGUMENT,
}  # fmt: skip
# Root mean square of the difference of logits, over the spread of the reference's.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
_NOISE_FACTOR = 3.0  # ... or this much of what the model's own two kinds of attention differ by
_NOISE_MAX = 0.1
_RECORD_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What one forward shows."""

    layers: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    windows: tuple[int, ...]  # per layer; 0: attends to everything before


class Recorder(Cache):
    """Plays the part of a step for one short sequence, and writes down what the layers ask for."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, tuple[torch.Size, torch.Size]] = {}
        self.windows: dict[int, int] = {}
        self.problems: dict[str, None] = {}  # ordered, each once
        self._layer = -1

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer_idx] = (key_states.shape, value_states.shape)
        self._layer = layer_idx
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def record(
        self,
        module: torch.nn.Module,
        attention_mask: torch.Tensor | None,
        kwargs: dict[str, Any],
    ) -> None:
        """One attention call of the layer that has just brought its K and V."""
        for name, setting in kwargs.items():
            if name not in _HARMLESS and setting is not None and setting is not False:
                self.problems[f"its attention takes {name!r}"] = None
        if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
            self.problems["its attention looks ahead"] = None
        if self._layer in self.windows:
            self.problems["a layer attends without KV of its own"] = None
        window = int(kwargs.get("sliding_window") or 0)
        if attention_mask is not None:  # transformers goes by the mask, so it decides
            window = int(attention_mask.reshape(-1)[0]) if attention_mask.numel() == 1 else -1
        if window < 0:
            self.problems["it masks attention in a way of its own"] = None
        self.windows[self._layer] = window

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2)


def read_shape(loaded: LoadedModel) -> ModelShape:
    """Runs one forward and reads the model's shape off it. Raises UnsupportedModel."""
    recorder = Recorder()
    name = loaded.config.model_type
    tokens = torch.zeros(1, _RECORD_TOKENS, dtype=torch.long, device=loaded.device)
    positions = torch.arange(_RECORD_TOKENS, device=loaded.device)[None]
    try:
        with torch.inference_mode():
            logits = loaded.model(
                input_ids=tokens,
                position_ids=positions,
                use_cache=True,
                **{loaded.cache_argument: recorder, STEP_ARGUMENT: recorder},
            ).logits
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{name} does not run over a paged cache: {type(error).__name__}: {error}"
        ) from error
    problems = list(recorder.problems)
    shapes = {shape for pair in recorder.shapes.values() for shape in pair}
    if not recorder.windows:
        problems.append("it never calls the attention interface")
    elif sorted(recorder.shapes) != list(range(len(recorder.shapes))):
        problems.append("some of its layers keep no KV")
    elif len(shapes) != 1:
        problems.append("its K and V, or its layers, differ in shape")
    if problems:
        raise UnsupportedModel(f"{name} cannot be served over a paged pool: {'; '.join(problems)}")
    _, kv_heads, _, head_dim = shapes.pop()
    return ModelShape(
        layers=len(recorder.shapes),
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=logits.shape[-1],
        windows=tuple(recorder.windows[layer] for layer in range(len(recorder.shapes))),
    )


RunPieces = Callable[[Sequence[Piece]], torch.Tensor]  # logits of each piece's last row


def compare_with_own_attention(
    loaded: LoadedModel, shape: ModelShape, block_tokens: int, run: RunPieces
) -> float:
    """Runs two prompts in chunks and then token by token through `run`, and each in one go through
    the model's own attention. `run` works on an otherwise unused pool of `probe_blocks` blocks.
    Returns the difference; raises UnsupportedModel when it is more than rounding."""
    lengths = probe_lengths(shape, loaded.context_tokens, block_tokens)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, shape.vocab_size, n, dtype=np.int32) for n in lengths]
    tables, first = [], 0
    for length in lengths:
        count = -(-length // block_tokens)
        tables.append(list(range(first, first + count))[::-1])
        first += count
    ours: list[list[torch.Tensor]] = [[], []]
    at: list[list[int]] = [[], []]
    for spans in _schedule(lengths):
        pieces = [Piece(prompts[i][a:b], a, tables[i]) for i, a, b in spans]
        rows = run(pieces)
        for (i, _, end), row in zip(spans, rows, strict=True):
            ours[i].append(row)
            at[i].append(end - 1)
    difference = allowed = 0.0
    for i in range(2):
        reference = _own_logits(loaded, prompts[i], at[i])
        difference = max(difference, _distance(torch.stack(ours[i]).float(), reference))
        allowed = max(allowed, _allowed(loaded, prompts[i], at[i], reference))
    if not difference <= allowed:  # NaN is refused too
        raise UnsupportedModel(
            f"{loaded.config.model_type} answers differently over a paged pool: its logits are off "
            f"by {difference:.2g} of their spread ({allowed:.2g} allowed)"
        )
    return difference


def _distance(logits: torch.Tensor, reference: torch.Tensor) -> float:
    return float((logits - reference).square().mean().sqrt() / reference.std())


def _allowed(
    loaded: LoadedModel, prompt: NDArray[np.int32], rows: list[int], reference: torch.Tensor
) -> float:
    """In 16 bits, how much rounding matters depends on the model: its own two kinds of attention
    show it."""
    tolerance = _TOLERANCE[loaded.dtype]
    if loaded.dtype is torch.float32:
        return tolerance
    noise = _distance(_own_logits(loaded, prompt, rows, "eager"), reference)
    return max(tolerance, _NOISE_FACTOR * min(noise, _NOISE_MAX))


def probe_lengths(shape: ModelShape, context_tokens: int, block_tokens: int) -> tuple[int, int]:
    """Long enough to cross a block's border, and a sliding window when that is short."""
    windows = [w for w in shape.windows if 0 < w <= 512]
    long = max([block_tokens + 9, *(w + 9 for w in windows)])
    return min(long, context_tokens), min(11, context_tokens)


def probe_blocks(lengths: tuple[int, int], block_tokens: int) -> int:
    return sum(-(-n // block_tokens) for n in lengths)


def _schedule(lengths: tuple[int, int]) -> list[list[tuple[int, int, int]]]:
    """Steps of (prompt, start, end): chunks of both together, then single tokens of both."""
    long, short = lengths
    cuts = [0, max(1, long // 3), max(2, long - 3)]
    chunked = [
        [(0, cuts[0], cuts[1]), (1, 0, max(1, short - 3))],
        [(0, cuts[1], cuts[2])],
    ]
    singles = [
        [(0, long - back, long - back + 1), (1, short - back, short - back + 1)]
        for back in (3, 2, 1)
        if long - back >= cuts[2] and short - back >= max(1, short - 3)
    ]
    return [[s for s in step if s[1] < s[2]] for step in [*chunked, *singles]]


def _own_logits(
    loaded: LoadedModel, prompt: NDArray[np.int32], rows: list[int], attention: str = "sdpa"
) -> torch.Tensor:
    model = loaded.model
    model.set_attn_implementation(attention if model._supports_sdpa else "eager")
    try:
        with torch.inference_mode():
            tokens = torch.from_numpy(prompt.astype(np.int64)).to(loaded.device)[None]
            logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ATTENTION)
    return logits[rows].float()
