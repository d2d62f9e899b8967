"""A step's promises: hooks, aborts, bad pieces, and views of the pool."""

from collections.abc import Callable

import numpy as np
import pytest

from moonpool.engine import BadStep, Piece
from moonpool.engine.torch_engine import TorchEngine
from tests.support.engine_runs import GREEDY, Run, nan_pool, run_all, run_step

Engines = Callable[[str], TorchEngine]


class Calls:
    """Writes down hook calls; `fail_at` raises there once."""

    def __init__(self, fail_at: tuple[str, int] | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.fail_at = fail_at

    def _call(self, kind: str, layer: int) -> None:
        self.seen.append((kind, layer))
        if self.fail_at == (kind, layer):
            raise ConnectionError("the block did not arrive")

    def before_layer(self, layer: int) -> None:
        self._call("before", layer)

    def after_layer(self, layer: int) -> None:
        self._call("after", layer)


def prompt(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, count, dtype=np.int32)


def test_hooks_are_called_in_order_before_and_after_each_layer(engines: Engines) -> None:
    engine = engines("gemma3_mixed")
    calls = Calls()
    run_step(engine, [Run(prompt(40), [0, 1, 2])], 512, calls)
    assert calls.seen == [(kind, layer) for layer in range(3) for kind in ("before", "after")]


def test_after_layer_finds_the_layers_kv_of_all_pieces_in_the_pool(engines: Engines) -> None:
    engine = engines("llama")
    layout = engine.spec.layout
    runs = [Run(prompt(32, 2), [4, 5]), Run(prompt(16, 3), [7])]
    copies: dict[tuple[int, int], bytes] = {}

    class Look(Calls):
        def after_layer(self, layer: int) -> None:
            for block in (4, 5, 7):
                copies[block, layer] = bytes(engine.read_block(block, range(layer, layer + 1)))

    run_step(engine, runs, 512, Look())
    for (block, layer), then in copies.items():
        values = np.frombuffer(then, dtype=np.float32)
        assert values.size * 4 == layout.layer_bytes
        assert np.isfinite(values).all()
        assert then == bytes(engine.read_block(block, range(layer, layer + 1)))


@pytest.mark.parametrize("fail_at", [("before", 0), ("after", 0), ("before", 1), ("after", 1)])
def test_a_step_aborted_by_a_hook_gives_the_same_result_when_run_again(
    fail_at: tuple[str, int], engines: Engines
) -> None:
    engine = engines("llama")
    whole = Run(prompt(50), [0, 1, 2, 3])
    run_all(engine, [whole], 5, 16)

    engine = engines("llama")
    run = Run(prompt(50), [9, 8, 7, 6])
    run_step(engine, [run], 20)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            run_step(engine, [run], 20, Calls(fail_at))
    run_all(engine, [run], 5, 20)
    assert run.output == whole.output


def test_reused_blocks_may_arrive_as_late_as_before_layer(engines: Engines) -> None:
    engine = engines("qwen2")
    whole = Run(prompt(50), [0, 1, 2, 3])
    run_all(engine, [whole], 3, 16)
    kept = {
        (block, layer): bytes(engine.read_block(block, range(layer, layer + 1)))
        for block in (0, 1)
        for layer in range(2)
    }

    class Arrive(Calls):
        def before_layer(self, layer: int) -> None:
            for block in (0, 1):
                engine.write_block(
                    block + 20, range(layer, layer + 1), memoryview(kept[block, layer])
                )

    engine = engines("qwen2")
    run = Run(prompt(50), [20, 21, 30, 31], done=32)
    run_step(engine, [run], 512, Arrive())
    run_all(engine, [run], 3, 1)
    assert run.output == whole.output


def test_nothing_is_sampled_where_nothing_was_asked(engines: Engines) -> None:
    engine = engines("llama")
    result = engine.step([Piece(prompt(8), 0, [3]), Piece(prompt(20), 0, [1, 2])])
    assert result.sampled == [None, None]
    assert result.compute_s > 0
    assert result.waited_s < result.compute_s


@pytest.mark.parametrize(
    ("piece", "says"),
    [
        (Piece(np.array([], dtype=np.int32), 0, [0]), "0 tokens"),
        (Piece(prompt(17), 0, [0]), "do not cover"),
        (Piece(prompt(1), 16, [0]), "do not cover"),
        (Piece(prompt(4), -1, [0]), "position -1"),
        (Piece(prompt(4), 0, [96]), "outside"),
        (Piece(prompt(4), 0, [-1]), "outside"),
        (Piece(np.array([257], dtype=np.int32), 0, [0]), "vocabulary"),
        (Piece(np.array([-1], dtype=np.int32), 0, [0]), "vocabulary"),
        (Piece(prompt(1), 512, list(range(33))), "context"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_before_anything_is_written(
    piece: Piece, says: str, engines: Engines
) -> None:
    engine = engines("llama")
    calls = Calls()
    with pytest.raises(BadStep, match=says):
        engine.step([Piece(prompt(4), 0, [5]), piece], calls)
    assert calls.seen == []
    assert set(bytes(engine.read_block(5, range(2)))) == {0xFF}


def test_no_pieces_is_a_bad_step(engines: Engines) -> None:
    with pytest.raises(BadStep, match="at least one"):
        engines("llama").step([])


def test_a_pool_in_a_buffer_is_that_buffer(engines: Engines) -> None:
    engine = engines("llama")
    layout = engine.spec.layout
    buffer = nan_pool(engine, 4)
    engine.attach_pool(4, buffer)
    run_step(engine, [Run(prompt(20), [2, 1])], 512)
    for block in (1, 2):
        first = layout.layer_offset(block, 1)
        view = engine.read_block(block, range(1, 2))
        assert bytes(view) == bytes(buffer[first : first + layout.layer_bytes])
    untouched = layout.block_bytes
    assert set(bytes(buffer[:untouched])) == {0xFF}


def test_a_buffer_of_another_size_is_refused(engines: Engines) -> None:
    engine = engines("llama")
    with pytest.raises(ValueError, match="are needed"):
        engine.attach_pool(5, nan_pool(engine, 4))
    with pytest.raises(ValueError, match="read-only"):
        engine.attach_pool(4, nan_pool(engine, 4).toreadonly())


def test_a_closed_engine_lets_its_buffer_go(engines: Engines) -> None:
    engine = engines("llama")
    data = bytearray(4 * engine.spec.layout.block_bytes)
    engine.attach_pool(4, memoryview(data))
    run_step(engine, [Run(prompt(20), [2, 1])], 512)
    engine.close()
    engine.close()
    data.append(0)  # BufferError while anybody still holds a view
    assert engine.blocks_total == 0
    with pytest.raises(BadStep, match="attach"):
        engine.step([Piece(prompt(4), 0, [0])])


def test_stats_count_steps_and_rows(engines: Engines) -> None:
    engine = engines("llama")
    before = engine.stats()
    run_all(engine, [Run(prompt(20), [2, 1], GREEDY)], 3, 16)
    after = engine.stats()
    assert after["steps"] - before["steps"] == 4
    assert after["rows"] - before["rows"] == 22
