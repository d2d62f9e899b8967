"""The default engine: transformers' own model code over a paged KV pool."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from moonpool.engine.base import LayerHooks, ModelSpec, NoHooks, Piece, Sampled, StepResult
from moonpool.engine.digest import weights_digest
from moonpool.engine.errors import BadStep, UnsupportedModel
from moonpool.engine.hf_model import LoadedModel, load_hf_model
from moonpool.engine.paged_step import STEP_ARGUMENT, PagedStep, PoolView
from moonpool.engine.probe import (
    ModelShape,
    compare_with_own_attention,
    probe_blocks,
    probe_lengths,
    read_shape,
)
from moonpool.engine.sampling import sample
from moonpool.engine.step_plan import check_pieces, plan_step
from moonpool.kv import BlockLayout, ModelIdentity

_NO_HOOKS = NoHooks()


class TorchEngine:
    """Implements `base.Engine`. Made by `load_engine`; needs `attach_pool` before the first step.

    Not thread-safe: one thread makes all calls.
    """

    def __init__(self, loaded: LoadedModel, shape: ModelShape, spec: ModelSpec) -> None:
        self._loaded = loaded
        self._shape = shape
        self._spec = spec
        self._view: PoolView | None = None
        self._blocks_total = 0
        self._bytes: memoryview | None = None  # of a pool in host memory
        self._steps = 0
        self._rows = 0
        self._compute_s = 0.0
        self._waited_s = 0.0

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def blocks_total(self) -> int:
        return self._blocks_total

    @property
    def device(self) -> str:
        return str(self._loaded.device)

    @property
    def windows(self) -> tuple[int, ...]:
        """Per layer, how many tokens back it attends; 0: to all."""
        return self._shape.windows

    def attach_pool(self, blocks: int, buffer: memoryview | None = None) -> None:
        """Takes `buffer` (writable, blocks * block_bytes) as the pool, or allocates one.

        The contents may be anything. A CUDA engine always has a pool of its own on the device and
        uses no buffer. ValueError when sizes do not fit.
        """
        layout = self._spec.layout
        size_bytes = blocks * layout.block_bytes
        if blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {blocks}")
        if self._loaded.device.type != "cpu":
            if buffer is not None:
                raise ValueError("a pool on an accelerator cannot lie in host memory")
            raw = torch.empty(size_bytes, dtype=torch.uint8, device=self._loaded.device)
        elif buffer is None:
            raw = torch.empty(size_bytes, dtype=torch.uint8)
        else:
            if buffer.nbytes != size_bytes or buffer.readonly:
                raise ValueError(
                    f"the buffer has {buffer.nbytes} bytes"
                    f"{' (read-only)' if buffer.readonly else ''}; {size_bytes} writable are needed"
                )
            raw = torch.frombuffer(buffer, dtype=torch.uint8)
        self._bytes = raw.numpy().data if raw.device.type == "cpu" else None
        self._view = PoolView(raw.view(self._loaded.dtype).view(blocks, *layout.shape), layout)
        self._blocks_total = blocks

    def step(self, pieces: Sequence[Piece], hooks: LayerHooks = _NO_HOOKS) -> StepResult:
        """Runs all pieces as one flattened batch. Raises BadStep before anything is written, and
        whatever a hook raises, after which every piece may be run again."""
        view = self._pool()
        check_pieces(pieces, self._spec, self._blocks_total)
        started_s = time.perf_counter()
        with torch.inference_mode():
            logits, waited_s = self._forward(pieces, hooks, view)
            specs = [piece.sample for piece in pieces if piece.sample is not None]
            sampled = iter(sample(logits, specs, self._spec.eos_token_ids) if specs else ())
        results: list[Sampled | None] = [
            None if piece.sample is None else next(sampled) for piece in pieces
        ]
        compute_s = time.perf_counter() - started_s - waited_s
        self._steps += 1
        self._rows += sum(len(piece.tokens) for piece in pieces)
        self._compute_s += compute_s
        self._waited_s += waited_s
        return StepResult(results, compute_s=compute_s, waited_s=waited_s)

    def logits(self, pieces: Sequence[Piece], hooks: LayerHooks = _NO_HOOKS) -> torch.Tensor:
        """Like `step`, but returns the logits of each piece's last token. [pieces, vocab_size]"""
        check_pieces(pieces, self._spec, self._blocks_total)
        with torch.inference_mode():
            return self._forward(pieces, hooks, self._pool(), every=True)[0]

    def _forward(
        self, pieces: Sequence[Piece], hooks: LayerHooks, view: PoolView, every: bool = False
    ) -> tuple[torch.Tensor, float]:
        """Logits of the rows that sample (or of every piece's last row), and seconds in hooks."""
        loaded = self._loaded
        plan = plan_step(pieces, self._spec.layout, loaded.device, every=every)
        step = PagedStep(plan, view, hooks, self._shape.windows)
        arguments: dict[str, Any] = {loaded.cache_argument: step, STEP_ARGUMENT: step}
        if loaded.can_pick_rows:
            arguments["logits_to_keep"] = plan.sample_rows
        output = loaded.model(
            input_ids=plan.tokens, position_ids=plan.positions, use_cache=True, **arguments
        )
        logits: torch.Tensor = output.logits[0]
        if not loaded.can_pick_rows:
            logits = logits[plan.sample_rows]
        return logits, step.waited_s

    def read_block(self, block: int, layers: range) -> memoryview:
        """Bytes of consecutive layers of one block: a view of the pool on the CPU, a copy from an
        accelerator."""
        layout = self._spec.layout
        self._check_block(block, layers)
        if self._bytes is not None:
            first = layout.layer_offset(block, layers.start)
            return self._bytes[first : first + len(layers) * layout.layer_bytes]
        part = self._pool().pool[block, layers.start : layers.stop].contiguous()
        return part.view(torch.uint8).cpu().numpy().reshape(-1).data

    def write_block(self, block: int, layers: range, data: memoryview) -> None:
        """Puts bytes of consecutive layers of one block into the pool. ValueError on a length that
        does not fit."""
        layout = self._spec.layout
        self._check_block(block, layers)
        if data.nbytes != len(layers) * layout.layer_bytes:
            raise ValueError(f"{data.nbytes} bytes are not {len(layers)} layers of a block")
        if self._bytes is not None:
            self.read_block(block, layers)[:] = data.cast("B")
            return
        source = torch.frombuffer(bytearray(data), dtype=self._loaded.dtype)
        target = self._pool().pool[block, layers.start : layers.stop]
        target.copy_(source.view(target.shape))

    def _check_block(self, block: int, layers: range) -> None:
        count = self._spec.layout.layers
        inside = 0 <= layers.start < layers.stop <= count and layers.step == 1
        if not 0 <= block < self._blocks_total or not inside:
            raise BadStep(f"no block {block}, layers {layers}, in {self._blocks_total} blocks")

    def _pool(self) -> PoolView:
        if self._view is None:
            raise BadStep("attach a pool before the first step")
        return self._view

    def stats(self) -> dict[str, float]:
        return {
            "steps": self._steps,
            "rows": self._rows,
            "compute_s": self._compute_s,
            "waited_s": self._waited_s,
            "blocks_total": self._blocks_total,
        }

    def close(self) -> None:
        """Lets go of the pool, so that a shared buffer can be unmapped. May be called twice."""
        self._view = None
        self._bytes = None
        self._blocks_total = 0


def load_engine(
    path: Path,
    *,
    name: str,
    revision: str = "",
    dtype: str = "auto",
    device: str = "auto",
    block_tokens: int = 64,
    threads: int = 0,
) -> TorchEngine:
    """Loads a model folder and proves that it runs over a paged pool as it does by itself.

    `threads` sets PyTorch's threads of this whole process; 0 takes all cores. Raises ModelNotFound,
    ModelDamaged or UnsupportedModel.
    """
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    digest = weights_digest(path)
    loaded = load_hf_model(path, dtype=dtype, device=device)
    shape = read_shape(loaded)
    try:
        layout = BlockLayout(
            shape.layers,
            shape.kv_heads,
            shape.head_dim,
            block_tokens,
            str(loaded.dtype).removeprefix("torch."),
        )
    except ValueError as error:
        raise UnsupportedModel(str(error)) from error
    identity = ModelIdentity(name, revision, digest, layout, loaded.rope)
    spec = ModelSpec(
        identity, layout, shape.vocab_size, loaded.context_tokens, loaded.eos_token_ids
    )
    engine = TorchEngine(loaded, shape, spec)
    lengths = probe_lengths(shape, loaded.context_tokens, block_tokens)
    engine.attach_pool(probe_blocks(lengths, block_tokens))
    compare_with_own_attention(loaded, shape, block_tokens, engine.logits)
    engine.close()
    return engine
