"""The baseline: the same engine in this process, no mesh around it."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moonpool.engine import NoHooks, Piece, SampleSpec
from moonpool.engine.torch_engine import load_engine
from moonpool.messages.sampling import SamplingParams

BLOCK_TOKENS = 64
BLOCKS = 64
GREEDY = SamplingParams(temperature=0, max_tokens=4096)


class DirectEngine:
    """Runs one sequence at a time with all cores, as an instance does."""

    def __init__(self, path: Path, dtype: str, chunk_tokens: int) -> None:
        self._engine = load_engine(path, name="direct", dtype=dtype, block_tokens=BLOCK_TOKENS)
        self._engine.attach_pool(BLOCKS)
        self._chunk_tokens = chunk_tokens

    def prefill_s(self, prompt: Sequence[int]) -> float:
        """Seconds from call to first token."""
        started_s = time.perf_counter()
        self._prefill(np.asarray(prompt, np.int32))
        return time.perf_counter() - started_s

    def tokens_per_s(self, prompt: Sequence[int], count: int) -> float:
        """Of `count` decode steps after the prompt, one sequence."""
        tokens = np.asarray(prompt, np.int32)
        token = self._prefill(tokens)
        started_s = time.perf_counter()
        for _ in range(count):
            tokens = np.append(tokens, np.int32(token))
            token = self._step(tokens, len(tokens) - 1, len(prompt))
        return count / (time.perf_counter() - started_s)

    def _prefill(self, tokens: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> int:
        token = 0
        for start in range(0, len(tokens), self._chunk_tokens):
            end = min(start + self._chunk_tokens, len(tokens))
            token = self._step(tokens[:end], start, len(tokens), sample=end == len(tokens))
        return token

    def _step(
        self,
        history: "np.ndarray[tuple[int], np.dtype[np.int32]]",
        start: int,
        output_start: int,
        sample: bool = True,
    ) -> int:
        spec = SampleSpec(GREEDY, history, output_start, len(history) - output_start)
        piece = Piece(history[start:], start, range(BLOCKS), spec if sample else None)
        sampled = self._engine.step([piece], NoHooks()).sampled[0]
        return sampled.token if sampled is not None else 0
