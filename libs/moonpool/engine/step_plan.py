"""A step laid out for the pool: every index that attention needs, made once and used by all layers.

The pool seen as rows is `[blocks * layers * 2 * block_tokens, kv_heads, head_dim]`, seen as halves
(K or V of one layer of one block) `[blocks * layers * 2, block_tokens * kv_heads * head_dim]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from moonpool.engine.base import ModelSpec, Piece
from moonpool.engine.errors import BadStep
from moonpool.kv import BlockLayout

# Decodes of different length share one attention call while padding costs less than this share.
PADDING_MAX = 1.25


@dataclass(slots=True)
class ChunkPart:
    """One piece of more than one token."""

    row: int  # its tokens are rows [row, row + tokens) of the flattened batch
    tokens: int
    start: int
    # Pool halves of its block table, K's first. None when start == 0: then all its KV is in this
    # very step. [layers, 2 * blocks]
    halves: torch.Tensor | None


@dataclass(slots=True)
class DecodePart:
    """Pieces of one token each, of similar length, padded to the longest."""

    rows: torch.Tensor | None  # rows of the flattened batch; None: all of it, in order
    lengths: NDArray[np.int64]  # [sequences] tokens of KV, the new one included
    # [layers, 2 * sequences * blocks]; short sequences repeat a block of their own
    halves: torch.Tensor
    # Rows of the gathered `[2 * sequences * blocks * block_tokens]` that hold no token of the
    # sequence, below the longest: whatever lies there must not count. None when there are none.
    void: torch.Tensor | None

    def span(self, window: int) -> slice:
        """Positions that any of the sequences attends to."""
        first = int(self.lengths.min()) - window if window else 0
        return slice(max(0, first), int(self.lengths.max()))


@dataclass(slots=True)
class StepPlan:
    tokens: torch.Tensor  # [1, rows]
    positions: torch.Tensor  # [1, rows]
    writes: torch.Tensor  # [layers, 2 * rows] rows of the pool: K of all, then V of all
    chunks: list[ChunkPart]
    decodes: list[DecodePart]
    sample_rows: torch.Tensor  # [pieces that sample]

    @property
    def rows(self) -> int:
        return self.tokens.shape[1]


def check_pieces(pieces: Sequence[Piece], spec: ModelSpec, blocks_total: int) -> None:
    """Raises BadStep when a piece does not fit: nothing has been written then."""
    layout = spec.layout
    if not pieces:
        raise BadStep("a step needs at least one piece")
    for number, piece in enumerate(pieces):
        count = len(piece.tokens)
        if count < 1 or piece.start < 0:
            raise BadStep(f"piece {number} has {count} tokens from position {piece.start}")
        if len(piece.blocks) < layout.blocks_for(piece.start + count):
            raise BadStep(
                f"piece {number} ends at {piece.start + count}: its {len(piece.blocks)} blocks "
                f"of {layout.block_tokens} tokens do not cover it"
            )
        if min(piece.blocks) < 0 or max(piece.blocks) >= blocks_total:
            raise BadStep(f"piece {number} names a block outside 0..{blocks_total - 1}")
        if piece.tokens.min() < 0 or piece.tokens.max() >= spec.vocab_size:
            raise BadStep(f"piece {number} has a token outside the vocabulary of {spec.vocab_size}")
        if piece.start + count > spec.context_tokens:
            raise BadStep(
                f"piece {number} ends at {piece.start + count}: beyond the model's context of "
                f"{spec.context_tokens} tokens"
            )


def plan_step(
    pieces: Sequence[Piece], layout: BlockLayout, device: torch.device, *, every: bool = False
) -> StepPlan:
    """Lays out checked pieces as one flattened batch, in their order. `every`: logits are wanted of
    every piece's last row, not only of those that sample."""
    tokens, positions, slots, sample_rows = [], [], [], []
    chunks: list[ChunkPart] = []
    singles: list[tuple[int, Piece]] = []
    row = 0
    for piece in pieces:
        count = len(piece.tokens)
        at = np.arange(piece.start, piece.start + count, dtype=np.int64)
        table = np.asarray(piece.blocks, dtype=np.int64)
        tokens.append(piece.tokens)
        positions.append(at)
        slots.append(_rows_of(table[at // layout.block_tokens], at, layout))
        if count == 1:
            singles.append((row, piece))
        else:
            halves = _halves_of(table[: layout.blocks_for(piece.start + count)], layout)
            held = None if piece.start == 0 else torch.from_numpy(halves).to(device)
            chunks.append(ChunkPart(row, count, piece.start, held))
        row += count
        if every or piece.sample is not None:
            sample_rows.append(row - 1)
    k_rows = np.concatenate(slots)
    layer0 = np.concatenate((k_rows, k_rows + layout.block_tokens))
    per_layer = np.arange(layout.layers, dtype=np.int64)[:, None] * (2 * layout.block_tokens)

    def move(values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(device)

    return StepPlan(
        tokens=move(np.concatenate(tokens).astype(np.int64)[None]),
        positions=move(np.concatenate(positions)[None]),
        writes=move(layer0[None] + per_layer),
        chunks=chunks,
        decodes=_group_decodes(singles, row, layout, device),
        sample_rows=move(np.asarray(sample_rows, dtype=np.int64)),
    )


def _rows_of(
    blocks: NDArray[np.int64], positions: NDArray[np.int64], layout: BlockLayout
) -> NDArray[np.int64]:
    """Pool rows of K at layer 0."""
    return blocks * (layout.layers * 2 * layout.block_tokens) + positions % layout.block_tokens


def _halves_of(blocks: NDArray[np.int64], layout: BlockLayout) -> NDArray[np.int64]:
    """Pool halves of all blocks, K's before V's. [layers, 2 * blocks]"""
    first = blocks.reshape(-1) * (layout.layers * 2)
    layer0 = np.concatenate((first, first + 1))
    return layer0[None] + 2 * np.arange(layout.layers, dtype=np.int64)[:, None]


def _group_decodes(
    singles: list[tuple[int, Piece]], rows: int, layout: BlockLayout, device: torch.device
) -> list[DecodePart]:
    """Groups by length, longest first, so that padding stays small."""
    if not singles:
        return []
    counts = [layout.blocks_for(piece.start + 1) for _, piece in singles]
    whole = len(singles) == rows
    if max(counts) * len(counts) <= PADDING_MAX * sum(counts):
        return [_decode_part(singles, layout, device, whole)]
    ordered = sorted(zip(counts, singles, strict=True), key=lambda pair: -pair[0])
    groups: list[list[tuple[int, Piece]]] = []
    longest = total = 0
    for count, single in ordered:
        size = len(groups[-1]) + 1 if groups else 1
        if groups and longest * size <= PADDING_MAX * (total + count):
            groups[-1].append(single)
            total += count
        else:
            groups.append([single])
            longest = total = count
    return [_decode_part(group, layout, device, whole=False) for group in groups]


def _decode_part(
    singles: list[tuple[int, Piece]], layout: BlockLayout, device: torch.device, whole: bool
) -> DecodePart:
    lengths = np.array([piece.start + 1 for _, piece in singles], dtype=np.int64)
    blocks = layout.blocks_for(int(lengths.max()))
    table = np.empty((len(singles), blocks), dtype=np.int64)
    for number, (_, piece) in enumerate(singles):
        used = layout.blocks_for(int(lengths[number]))
        table[number, :used] = piece.blocks[:used]
        table[number, used:] = piece.blocks[0]
    width = blocks * layout.block_tokens
    void = None
    if len(singles) > 1:
        at = np.arange(width)[None]  # what lies beyond the longest is cut off, not voided
        empty = (at >= lengths[:, None]) & (at < lengths.max())  # [sequences, width]
        if empty.any():
            void = torch.from_numpy(np.flatnonzero(np.stack((empty, empty)))).to(device)
    rows = None if whole else torch.tensor([row for row, _ in singles], device=device)
    halves = torch.from_numpy(_halves_of(table, layout)).to(device)
    return DecodePart(rows, lengths, halves, void)
