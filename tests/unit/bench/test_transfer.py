"""The arithmetic of the transfer benchmark, and one pair of its processes for real."""

from itertools import pairwise

import pytest

from bench.transfer import crew, shapes
from bench.transfer.crew import Crew, Side
from bench.transfer.results import Promise, Results
from bench.transfer.shapes import Shape

SHAPE = Shape(1 << 20)


def add(results: Results, side: str, *gb_per_s: float, op: str = "read") -> None:
    for value in gb_per_s:
        results.add((side, op, SHAPE), {"gb_per_s": value})


def test_a_ratio_compares_within_rounds_and_is_the_worst_of_both_directions() -> None:
    results, promise = Results(), Promise("x", "ours", "theirs", [SHAPE], 1.0)
    add(results, "ours", 2.0, 10.0, 3.0)  # the machine was five times as fast in round two
    add(results, "theirs", 1.0, 5.0, 1.0)
    add(results, "ours", 3.0, op="write")
    add(results, "theirs", 2.0, op="write")
    assert results.ratio(promise) == (1.5, "write of 1 MiB")


def test_no_ratio_without_a_rival() -> None:
    results = Results()
    add(results, "ours", 2.0)
    assert results.ratio(Promise("x", "ours", "theirs", [SHAPE], 1.0)) is None
    (row, _) = results.table(["ours", "theirs"], [SHAPE])
    assert (row["ours"], row["theirs"]) == (2.0, None)


@pytest.mark.parametrize("shape", shapes.ALL, ids=str)
def test_ranges_of_a_shape_stay_in_the_buffer_and_never_touch(shape: Shape) -> None:
    assert shape.places >= 1
    last = shape.offsets(shape.places - 1)
    assert last[-1] + shape.size <= shapes.BUFFER_BYTES
    assert all(b - a > shape.size for a, b in pairwise(last))


def test_a_side_is_checked_measured_and_stopped() -> None:
    with crew.running([Side("socket", "plain_socket")]) as running:
        answer = running.ask("socket", "write", Shape(4096), 0.001)
        assert answer is not None
        assert answer["calls"] >= 3
        assert not running.unavailable


def test_a_side_that_cannot_start_says_why(tmp_path) -> None:  # type: ignore[no-untyped-def]
    running = Crew(str(tmp_path))
    running.add(Side("nobody", "no_such_module"))
    assert running.unavailable["nobody"].startswith("ended:")
    assert "no_such_module" in running.unavailable["nobody"]
    assert running.ask("nobody", "read", SHAPE, 0.001) is None
