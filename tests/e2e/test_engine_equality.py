"""The real model in the engine alone: its greedy text is that of transformers' generate."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.engine.torch_engine import TorchEngine, load_engine
from tests.support.engine_runs import Run, nan_pool, run_step, tables
from tests.support.equality import assert_equal_up_to_ties
from tests.support.prompts import all_prompts
from tests.support.reference import Reference

pytestmark = pytest.mark.slow

TOKENS = 20


def open_engine(path: Path, dtype: str) -> TorchEngine:
    engine = load_engine(path, name="smollm2", dtype=dtype, device="cpu", block_tokens=64)
    engine.attach_pool(200, nan_pool(engine, 200))
    return engine


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[TorchEngine]:
    engine = open_engine(model_path, "float32")
    yield engine
    engine.close()


def answers(
    engine: TorchEngine, prompts: dict[str, list[int]], chunk: int, *, together: bool
) -> dict[str, list[int]]:
    """Greedy answers, each ended as `generate` ends it: by the end token or by length."""
    counts = [engine.spec.layout.blocks_for(len(ids) + TOKENS) for ids in prompts.values()]
    runs = {
        name: Run(np.array(ids, dtype=np.int32), table)
        for (name, ids), table in zip(prompts.items(), tables(counts), strict=True)
    }
    groups = [list(runs.values())] if together else [[run] for run in runs.values()]
    for group in groups:
        while waiting := [run for run in group if not is_over(engine, run)]:
            run_step(engine, waiting, chunk)
    return {name: run.output for name, run in runs.items()}


def is_over(engine: TorchEngine, run: Run) -> bool:
    ended = bool(run.output) and run.output[-1] in engine.spec.eos_token_ids
    return ended or len(run.output) == TOKENS


@pytest.mark.parametrize(("chunk", "together"), [(4096, False), (64, True), (100, True)])
def test_float32_is_equal_token_for_token(
    engine: TorchEngine, reference: Reference, chunk: int, together: bool
) -> None:
    prompts = all_prompts(reference)
    assert len(prompts) >= 20
    got = answers(engine, prompts, chunk, together=together)
    for name, ids in prompts.items():
        assert got[name] == reference.tokens(ids, TOKENS), name


def test_bfloat16_parts_from_the_reference_only_at_ties(model_path: Path) -> None:
    reference = Reference(model_path, "bfloat16")
    engine = open_engine(model_path, "bfloat16")
    prompts = all_prompts(reference)
    expected = {name: reference.tokens(ids, TOKENS) for name, ids in prompts.items()}
    for chunk, together in ((4096, False), (100, True)):
        got = answers(engine, prompts, chunk, together=together)
        ties = [
            assert_equal_up_to_ties(reference, ids, expected[name], got[name], name)
            for name, ids in prompts.items()
        ]
        assert sum(tie is None for tie in ties) > len(ties) // 2
    engine.close()
