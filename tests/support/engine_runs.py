"""Driving an engine by hand: prompts in chunks, then tokens, on blocks that come in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moonpool.engine import Engine, LayerHooks, NoHooks, Piece, SampleSpec
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.tokens import TokenLogprobs

GREEDY = SamplingParams(temperature=0)


@dataclass
class Run:
    """One request: what it has computed and what it has said."""

    prompt: NDArray[np.int32]
    blocks: Sequence[int]
    params: SamplingParams = GREEDY
    done: int = 0  # tokens whose KV is in the pool
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    output_start: int = -1  # where output begins in `prompt`, of an answer that is continued

    @property
    def history(self) -> NDArray[np.int32]:
        return np.concatenate((self.prompt, np.array(self.output, dtype=np.int32)))

    def next_piece(self, chunk: int) -> Piece:
        history = self.history
        tokens = history[self.done : self.done + chunk]
        spec = None
        if self.done + len(tokens) == len(history):
            start = len(self.prompt) if self.output_start < 0 else self.output_start
            spec = SampleSpec(self.params, history, start, len(history) - start)
        return Piece(tokens, self.done, self.blocks, spec)


def run_step(
    engine: Engine, sequences: Sequence[Run], chunk: int, hooks: LayerHooks | None = None
) -> None:
    """One step of all `sequences`; each moves on."""
    pieces = [sequence.next_piece(chunk) for sequence in sequences]
    result = engine.step(pieces, hooks or NoHooks())
    for sequence, piece, sampled in zip(sequences, pieces, result.sampled, strict=True):
        sequence.done += len(piece.tokens)
        if sampled is not None:
            sequence.output.append(sampled.token)
            sequence.logprobs.append(sampled.logprobs)


def run_all(engine: Engine, sequences: Sequence[Run], tokens: int, chunk: int) -> None:
    """Steps until each sequence has `tokens` tokens of output."""
    while waiting := [s for s in sequences if len(s.output) < tokens]:
        run_step(engine, waiting, chunk)


def tables(counts: Sequence[int], *, seed: int = 0) -> list[list[int]]:
    """Block tables of the given lengths, in no order, sharing nothing."""
    mixed = np.random.default_rng(seed).permutation(sum(counts)).tolist()
    ends = np.cumsum(counts)
    return [mixed[end - count : end] for end, count in zip(ends, counts, strict=True)]


def nan_pool(engine: Engine, blocks: int) -> memoryview:
    """All bits set: NaN in every float type."""
    return memoryview(bytearray(b"\xff" * (blocks * engine.spec.layout.block_bytes)))
