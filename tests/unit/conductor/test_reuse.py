"""Fetch or recompute: the cheapest length, by trying all of them."""

import hypothesis.strategies as st
from hypothesis import given, settings

from moonpool.messages.ids import OwnerId
from moonpool.messages.plan import PrefixRun
from services.conductor.reuse import Step, best_reuse, overlapped, runs_of


def make_steps(parts: list[tuple[int, float, float]]) -> list[Step]:
    steps, at = [], 0
    for i, (blocks, block_s, lead_s) in enumerate(parts):
        steps.append(
            Step(at, at + blocks, OwnerId(f"o{i}"), "dram", block_s, lead_s if block_s else 0.0)
        )
        at += blocks
    return steps


def load_s(steps: list[Step], blocks: int) -> float:
    total = 0.0
    for step in steps:
        if step.start < blocks:
            total += step.lead_s + (min(step.end, blocks) - step.start) * step.block_s
    return total


parts = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.just(0.0) | st.floats(1e-4, 0.3),
        st.floats(0.0, 0.5),
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=200)
@given(parts, st.floats(1e-3, 0.2), st.integers(0, 40))
def test_no_other_length_is_noticeably_shorter(
    given_parts: list[tuple[int, float, float]], per_block_s: float, extra: int
) -> None:
    steps = make_steps(given_parts)
    held = steps[-1].end if steps else 0
    total = held + extra + 1

    def compute_s(blocks: int) -> float:
        return 0.01 + per_block_s * (total - blocks)

    reuse = best_reuse(steps, compute_s)
    assert 0 <= reuse.blocks <= held
    assert abs(reuse.load_s - load_s(steps, reuse.blocks)) < 1e-9
    shortest = min(overlapped(load_s(steps, n), compute_s(n)) for n in range(held + 1))
    assert shortest <= reuse.work_s + 1e-9
    assert reuse.work_s <= shortest * 1.05 + 0.011


def test_own_blocks_cost_nothing() -> None:
    steps = [Step(0, 10, OwnerId("me"), "hbm", 0.0, 0.0)]
    reuse = best_reuse(steps, lambda blocks: 1.0 - blocks * 0.05)
    assert (reuse.blocks, reuse.fetched_blocks, reuse.load_s) == (10, 0, 0.0)


def test_a_slow_source_is_left_alone() -> None:
    steps = [Step(0, 10, OwnerId("far"), "oss", 10.0, 1.0)]
    reuse = best_reuse(steps, lambda blocks: 0.5 - blocks * 0.01)
    assert reuse.blocks == 0


def test_runs_of_one_place_are_one_run() -> None:
    a, b = OwnerId("a"), OwnerId("b")
    steps = [
        Step(0, 4, a, "hbm", 0.0, 0.0),
        Step(4, 6, a, "hbm", 0.0, 0.0),
        Step(6, 9, b, "dram", 1.0, 0.0),
        Step(9, 12, b, "nvme", 1.0, 0.0),
    ]
    assert runs_of(steps, 10) == (
        PrefixRun(a, "hbm", 0, 6),
        PrefixRun(b, "dram", 6, 9),
        PrefixRun(b, "nvme", 9, 10),
    )
    assert runs_of(steps, 0) == ()
