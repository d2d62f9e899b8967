"""The engine seam: a model that runs steps over a paged KV pool. Nothing outside `engine/` knows
which engine runs. One thread calls it; it never touches the network or an event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moonpool.kv import BlockLayout, ModelIdentity
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.tokens import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the mesh needs to know of a loaded model."""

    identity: ModelIdentity
    layout: BlockLayout
    vocab_size: int
    context_tokens: int
    eos_token_ids: tuple[int, ...]


@dataclass(slots=True)
class SampleSpec:
    """Sample a token after a piece's last token. `history` is prompt + output so far."""

    params: SamplingParams
    history: NDArray[np.int32]  # [tokens up to and including the piece's last]
    output_start: int  # history[output_start:] is output
    # index of the token to sample in the whole output: draws depend on (seed, index) alone
    index: int


@dataclass(slots=True)
class Piece:
    """Consecutive tokens of one sequence to run in this step: a chunk of a prompt, or one token."""

    tokens: NDArray[np.int32]  # [n], n >= 1
    start: int  # position of tokens[0]; KV of [0, start) is already in `blocks`
    blocks: Sequence[int]  # block table; covers at least [0, start + n)
    sample: SampleSpec | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class StepResult:
    sampled: list[Sampled | None]  # one per piece
    compute_s: float = 0.0
    waited_s: float = 0.0  # inside `before_layer`


class LayerHooks(Protocol):
    """Called by the step on its own thread. An exception aborts the step: no piece counts, and
    every piece may be run again (KV written so far is simply overwritten)."""

    def before_layer(self, layer: int) -> None:
        """Blocks until reused KV of this layer has arrived and been verified."""

    def after_layer(self, layer: int) -> None:
        """This layer's new KV of all pieces is in the pool now (a CUDA engine has synchronised)."""


@dataclass(slots=True)
class NoHooks:
    calls: int = field(default=0)

    def before_layer(self, layer: int) -> None:
        self.calls += 1

    def after_layer(self, layer: int) -> None:
        self.calls += 1


class Engine(Protocol):
    @property
    def spec(self) -> ModelSpec: ...

    @property
    def blocks_total(self) -> int: ...

    def step(self, pieces: Sequence[Piece], hooks: LayerHooks) -> StepResult:
        """Runs all pieces as one flattened batch, writing their KV into their blocks."""

    def read_block(self, block: int, layers: range) -> memoryview:
        """Bytes of consecutive layers of one block, for sending. On CPU a view of the pool itself;
        from an accelerator, a copy in host memory."""

    def close(self) -> None: ...
