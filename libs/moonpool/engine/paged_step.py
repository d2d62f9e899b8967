"""One step as the model sees it: a cache that writes into blocks, attention that reads from them.

transformers calls `update` and then the attention function once per layer; both find the step they
belong to in the call itself, so that nothing is shared between engines or threads.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

from moonpool.engine.base import LayerHooks
from moonpool.engine.step_plan import ChunkPart, DecodePart, StepPlan
from moonpool.kv import BlockLayout

ATTENTION = "moonpool_paged"  # the name under which transformers knows our attention
STEP_ARGUMENT = "paged_step"  # the model's call carries the step under this name


class PoolView:
    """The pool as rows and as halves: see `step_plan`."""

    def __init__(self, pool: torch.Tensor, layout: BlockLayout) -> None:
        self.layout = layout
        self.pool = pool  # [blocks, layers, 2, block_tokens, kv_heads, head_dim]
        self.rows = pool.view(-1, layout.kv_heads, layout.head_dim)
        self.halves = pool.view(-1, layout.block_tokens * layout.kv_heads * layout.head_dim)


class PagedStep(Cache):
    """Takes the K and V that a layer makes, and attends over what the block tables name."""

    def __init__(
        self,
        plan: StepPlan,
        view: PoolView,
        hooks: LayerHooks,
        windows: Sequence[int],
    ) -> None:
        super().__init__(layers=[])
        self.plan = plan
        self.view = view
        self.hooks = hooks
        self.windows = windows  # per layer; 0: attends to everything before
        self.waited_s = 0.0
        self._layer = 0
        self._masks: dict[tuple[int, int], torch.Tensor | None] = {}
        self._decode_masks: dict[tuple[int, int], torch.Tensor | None] = {}

    # -- what transformers asks of a cache -------------------------------------------------------

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes K and V `[1, kv_heads, rows, head_dim]` into their blocks."""
        started_s = time.perf_counter()
        self.hooks.before_layer(layer_idx)
        self.waited_s += time.perf_counter() - started_s
        fresh = torch.cat((key_states, value_states), dim=2)[0].transpose(0, 1)
        self.view.rows.index_copy_(0, self.plan.writes[layer_idx], fresh)
        if fresh.is_cuda:
            torch.cuda.current_stream(fresh.device).synchronize()
        self.hooks.after_layer(layer_idx)
        self._layer = layer_idx
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    # -- attention -------------------------------------------------------------------------------

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Query `[1, heads, rows, head_dim]`, fresh K and V; the result is `[1, rows, heads,
        head_dim]`."""
        plan, layer, window = self.plan, self._layer, self.windows[self._layer]
        heads, kv_heads = query.shape[1], key.shape[1]
        groups = heads // kv_heads
        # [rows, kv_heads, groups, head_dim]: query heads that share a KV head side by side
        grouped = query[0].transpose(0, 1).reshape(plan.rows, kv_heads, groups, -1)
        if not plan.chunks and len(plan.decodes) == 1 and plan.decodes[0].rows is None:
            out = self._decode(plan.decodes[0], grouped, layer, window, scaling)
            return out.reshape(1, plan.rows, heads, -1)
        result = grouped.new_empty(grouped.shape)
        for chunk in plan.chunks:
            span = slice(chunk.row, chunk.row + chunk.tokens)
            fresh = (key[0, :, span], value[0, :, span])
            result[span] = self._chunk(chunk, grouped[span], fresh, layer, window, scaling)
        for part in plan.decodes:
            assert part.rows is not None
            result[part.rows] = self._decode(part, grouped[part.rows], layer, window, scaling)
        return result.flatten(1, 2)[None]

    def _chunk(
        self,
        chunk: ChunkPart,
        query: torch.Tensor,
        fresh: tuple[torch.Tensor, torch.Tensor],
        layer: int,
        window: int,
        scaling: float | None,
    ) -> torch.Tensor:
        length = chunk.start + chunk.tokens
        if chunk.halves is None:
            keys, values = fresh  # [kv_heads, tokens, head_dim]
        else:
            keys, values = (
                side[:length].transpose(0, 1) for side in self._gather(chunk.halves, layer)
            )
        groups = query.shape[2]
        q = query.permute(2, 1, 0, 3)  # [groups, kv_heads, tokens, head_dim]
        k = keys.expand(groups, -1, -1, -1)
        v = values.expand(groups, -1, -1, -1)
        mask = self._chunk_mask(chunk, window, query)
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling
        )
        return out.permute(2, 1, 0, 3)

    def _decode(
        self,
        part: DecodePart,
        query: torch.Tensor,
        layer: int,
        window: int,
        scaling: float | None,
    ) -> torch.Tensor:
        """Query `[sequences, kv_heads, groups, head_dim]`; so is the result."""
        sequences = len(part.lengths)
        both = self._gather(part.halves, layer)  # [2, sequences * width, kv_heads, head_dim]
        if part.void is not None:
            both.flatten(0, 1).index_fill_(0, part.void, 0)
        both = both.view(2, sequences, -1, *both.shape[2:])[:, :, part.span(window)]
        keys, values = both.transpose(2, 3)  # [sequences, kv_heads, width, head_dim]
        mask = self._decode_mask(part, window, query)
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)

    def _gather(self, halves: torch.Tensor, layer: int) -> torch.Tensor:
        """K and V of whole blocks: `[2, blocks * block_tokens, kv_heads, head_dim]`."""
        layout = self.view.layout
        picked = self.view.halves.index_select(0, halves[layer])
        return picked.view(2, -1, layout.kv_heads, layout.head_dim)

    # -- masks: made once per step, used by all layers of the same window ------------------------

    def _chunk_mask(
        self, chunk: ChunkPart, window: int, query: torch.Tensor
    ) -> torch.Tensor | None:
        length = chunk.start + chunk.tokens
        if window >= length:
            window = 0
        if chunk.start == 0 and not window:
            return None
        mask = self._masks.get((chunk.row, window))
        if mask is None:
            at = torch.arange(length, device=query.device)
            ends = at[chunk.start :, None]
            hidden = at[None] > ends
            if window:
                hidden |= at[None] <= ends - window
            mask = query.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf)
            self._masks[chunk.row, window] = mask
        return mask

    def _decode_mask(
        self, part: DecodePart, window: int, query: torch.Tensor
    ) -> torch.Tensor | None:
        if len(part.lengths) == 1 or (part.void is None and not window):
            return None
        key = (id(part), window)
        if key not in self._decode_masks:
            span = part.span(window)
            lengths = torch.from_numpy(part.lengths).to(query.device)[:, None]
            at = torch.arange(span.start, span.stop, device=query.device)[None]
            hidden = at >= lengths
            if window:
                hidden |= at < lengths - window
            mask = query.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf)
            self._decode_masks[key] = mask[:, None, None]  # [sequences, 1, 1, width]
        return self._decode_masks[key]


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    step = kwargs[STEP_ARGUMENT]
    if type(step) is not PagedStep:
        step.record(module, attention_mask, kwargs)
    return step.attend(query, key, value, scaling), None


def _window_of_mask(
    *, local_size: int | None = None, use_vmap: bool = False, **_: Any
) -> torch.Tensor:
    """Instead of a mask: how far back it would let a token look, 0 for no limit, -1 for a mask that
    is neither causal nor a sliding window."""
    return torch.tensor(-1 if use_vmap else local_size or 0).view(1, 1, 1, 1)


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _window_of_mask)
