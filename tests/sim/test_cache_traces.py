"""Recorded traffic, where there is any: LRU's known hit rates, and how much ours gains on it.

The traces are not part of the project. They are looked for beside it, in `../shared/traces`.
"""

from pathlib import Path

import pytest

from services.conductor.simulate.cache.program import Run, simulate
from services.conductor.simulate.cache.trace import STEADY_PASSES, Request, read_trace

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"
M = 1_000_000

LRU_COLD = {
    "conversation": {1: 0.0543, 10: 0.2908},
    "synthetic": {1: 0.1451, 10: 0.5770},
}
LRU_STEADY = {
    "conversation": {1: 0.0543, 2: 0.0865, 3: 0.1387, 5: 0.2111, 10: 0.2908, 30: 0.3659},
    "synthetic": {1: 0.1451, 2: 0.2328, 3: 0.3151, 5: 0.4283, 10: 0.5770, 30: 0.6512},
}
BELADY_COLD = {
    "conversation": {1: 0.2577},
    "synthetic": {3: 0.5600},
}
# Gain of ours over LRU in steady state, at least, in points.
GAINS = [
    ("conversation", 1, 4.5),
    ("conversation", 3, 4.0),
    ("conversation", 20, -0.2),
    ("synthetic", 3, 1.5),
    ("synthetic", 20, -0.2),
]


def recorded(name: str) -> list[Request]:
    path = FOLDER / f"{name}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"no recorded trace at {path}")
    return read_trace(path)


def rate(requests: list[Request], policy: str, millions: int, passes: int = 1) -> float:
    run = Run("", policy, millions * M, passes)
    return simulate(run, requests).token_hit_rate


@pytest.mark.parametrize("name", LRU_COLD)
def test_lru_and_the_optimum_hit_what_is_known_of_a_cold_pass(name: str) -> None:
    requests = recorded(name)
    for millions, known in LRU_COLD[name].items():
        assert rate(requests, "lru", millions) == pytest.approx(known, abs=0.003)
    for millions, known in BELADY_COLD[name].items():
        assert rate(requests, "belady", millions) == pytest.approx(known, abs=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("name", LRU_STEADY)
def test_lru_hits_what_is_known_of_steady_state(name: str) -> None:
    requests = recorded(name)
    for millions, known in LRU_STEADY[name].items():
        assert rate(requests, "lru", millions, STEADY_PASSES) == pytest.approx(known, abs=0.003)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "millions", "points"), GAINS)
def test_ours_gains_on_lru_in_steady_state(name: str, millions: int, points: float) -> None:
    requests = recorded(name)
    ours = rate(requests, "ours", millions, STEADY_PASSES)
    lru = rate(requests, "lru", millions, STEADY_PASSES)
    assert 100 * (ours - lru) >= points
