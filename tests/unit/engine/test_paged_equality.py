"""Whatever the chunks, the batch and the blocks: the answer is the one transformers gives."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from moonpool.engine import Piece
from moonpool.engine.torch_engine import TorchEngine, load_engine
from tests.support.engine_runs import Run, nan_pool, run_all, tables
from tests.support.tiny_models import TINY

Engines = Callable[[str], TorchEngine]
KINDS = sorted(TINY)
LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 47, 70, 100]


def prompts(lengths: list[int]) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(7)
    return [rng.integers(1, 256, n, dtype=np.int32) for n in lengths]


class Reference:
    """transformers by itself, on the same folder."""

    def __init__(self, folder: object) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.generation_config.eos_token_id = None  # say exactly as much as asked

    def logits(self, tokens: NDArray[np.int32]) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]

    def generate(self, prompt: NDArray[np.int32], tokens: int) -> list[int]:
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        made = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
        )
        return made[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def references(tiny_folder: Callable[[str], object]) -> Callable[[str], Reference]:
    made: dict[str, Reference] = {}

    def reference(kind: str) -> Reference:
        if kind not in made:
            made[kind] = Reference(tiny_folder(kind))
        return made[kind]

    return reference


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [7, 16, 512])
def test_a_batch_in_chunks_says_what_each_prompt_alone_says(
    kind: str, chunk: int, engines: Engines, references: Callable[[str], Reference]
) -> None:
    engine, reference = engines(kind), references(kind)
    texts = prompts(LENGTHS)
    made = 6
    counts = [engine.spec.layout.blocks_for(len(text) + made) for text in texts]
    runs = [Run(text, table) for text, table in zip(texts, tables(counts), strict=True)]
    run_all(engine, runs, made, chunk)
    for run in runs:
        assert run.output == reference.generate(run.prompt, made), f"prompt of {len(run.prompt)}"


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_mixed_chunks_and_decodes_equal_those_of_one_forward(
    kind: str, engines: Engines, references: Callable[[str], Reference]
) -> None:
    engine, reference = engines(kind), references(kind)
    texts = prompts([64, 40, 90, 23, 5])
    expected = [reference.logits(text) for text in texts]
    counts = [engine.spec.layout.blocks_for(len(text)) for text in texts]
    blocks = tables(counts, seed=3)
    at = [0] * len(texts)
    rng = np.random.default_rng(5)
    while any(a < len(t) for a, t in zip(at, texts, strict=True)):
        chosen = [i for i, t in enumerate(texts) if at[i] < len(t) and rng.random() < 0.7]
        if not chosen:
            continue
        sizes = [int(rng.choice([1, 1, 1, 2, 9, 30])) for _ in chosen]
        pieces = [
            Piece(texts[i][at[i] : at[i] + n], at[i], blocks[i])
            for i, n in zip(chosen, sizes, strict=True)
        ]
        rows = engine.logits(pieces)
        for i, piece, row in zip(chosen, pieces, rows, strict=True):
            at[i] += len(piece.tokens)
            torch.testing.assert_close(row, expected[i][at[i] - 1], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["llama", "gemma3_mixed"])
def test_lengths_far_apart_decode_together(
    kind: str, engines: Engines, references: Callable[[str], Reference]
) -> None:
    engine, reference = engines(kind), references(kind)
    texts = prompts([300, 4, 150, 33, 290, 5])
    counts = [engine.spec.layout.blocks_for(len(text) + 4) for text in texts]
    runs = [Run(text, table) for text, table in zip(texts, tables(counts), strict=True)]
    run_all(engine, runs, 4, 512)
    for run in runs:
        assert run.output == reference.generate(run.prompt, 4)


def test_kv_written_by_one_engine_is_read_by_another(
    engines: Engines, tiny_folder: Callable[[str], object], references: Callable[[str], Reference]
) -> None:
    first, text = engines("qwen3"), prompts([50])[0]
    second = load_engine(
        tiny_folder("qwen3"), name="qwen3", device="cpu", block_tokens=16, threads=1
    )
    second.attach_pool(8, nan_pool(second, 8))
    run = Run(text, [9, 3, 7, 5])
    run_all(first, [run], 1, 512)
    moved = Run(text, [0, 6, 2, 4], done=50, output=list(run.output))
    for source, target in zip(run.blocks, moved.blocks, strict=True):
        for layer in range(first.spec.layout.layers):
            part = range(layer, layer + 1)
            second.write_block(target, part, first.read_block(source, part))
    run_all(second, [moved], 5, 1)
    assert moved.output == references("qwen3").generate(text, 5)
    assert first.spec.identity == second.spec.identity
