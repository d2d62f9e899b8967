"""One engine per tiny model, made once: their pools start out full of NaN."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moonpool.engine.torch_engine import TorchEngine, load_engine
from tests.support.engine_runs import nan_pool
from tests.support.tiny_models import TINY, save_tiny

BLOCKS = 96


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_tiny(TINY[kind], tmp_path_factory.mktemp(kind))
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def engines(tiny_folder: Callable[[str], Path]) -> Iterator[Callable[[str], TorchEngine]]:
    made: dict[str, TorchEngine] = {}

    def engine(kind: str) -> TorchEngine:
        if kind not in made:
            made[kind] = load_engine(
                tiny_folder(kind), name=kind, device="cpu", block_tokens=16, threads=1
            )
        made[kind].attach_pool(BLOCKS, nan_pool(made[kind], BLOCKS))
        return made[kind]

    yield engine
    for one in made.values():
        one.close()
