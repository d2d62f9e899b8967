"""Fetch or recompute: how much of a prompt's prefix one instance should load, in seconds.

Loading more blocks takes longer and leaves less to compute; both run at once, layer by layer. The
best length is where the two meet, or an end of a run, so it is found by halving.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from moonpool.messages.ids import OwnerId
from moonpool.messages.plan import PrefixRun

_OVERLAP = 0.9  # share of the shorter of load and compute that hides behind the longer


class Step(NamedTuple):
    """Blocks `[start, end)` from one source; steps lie back to back from block 0."""

    start: int
    end: int
    owner: OwnerId
    tier: str
    block_s: float  # seconds per block; 0: in the instance's own pool
    lead_s: float  # seconds before the first block comes


class Reuse(NamedTuple):
    """What to load and what that leaves to do."""

    blocks: int  # leading blocks not computed
    fetched_blocks: int  # of them, blocks that must be moved
    load_s: float
    compute_s: float
    work_s: float  # load and compute together, overlapped


def best_reuse(steps: Sequence[Step], compute_s: Callable[[int], float]) -> Reuse:
    """The shortest way to a computed prompt. `compute_s(blocks)` predicts the compute that is left
    after so many leading blocks; it should not rise. Equal ways: the one that moves less."""
    best = Reuse(0, 0, 0.0, first := compute_s(0), first)
    load_s, fetched = 0.0, 0
    for step in steps:
        own = step.block_s == 0.0
        start_s = load_s if own else load_s + step.lead_s
        if start_s >= best.work_s:
            break
        ends = (step.end,) if own else _ends(step, start_s, compute_s)
        for end in ends:
            loaded_s = start_s + (end - step.start) * step.block_s
            left_s = compute_s(end)
            work_s = overlapped(loaded_s, left_s)
            if work_s < best.work_s:
                moved = fetched if own else fetched + end - step.start
                best = Reuse(end, moved, loaded_s, left_s, work_s)
        load_s = start_s + (step.end - step.start) * step.block_s
        fetched += 0 if own else step.end - step.start
    return best


def _ends(step: Step, start_s: float, compute_s: Callable[[int], float]) -> tuple[int, ...]:
    """Ends of a partial run that can be best: around where load and compute meet, and its own."""
    low, high = step.start, step.end
    while high - low > 1:
        middle = (low + high) >> 1
        if start_s + (middle - step.start) * step.block_s < compute_s(middle):
            low = middle
        else:
            high = middle
    return (low, high, step.end) if low > step.start else (high, step.end)


def overlapped(load_s: float, compute_s: float) -> float:
    """Seconds of both when layers are computed while later ones load."""
    longer, shorter = (load_s, compute_s) if load_s > compute_s else (compute_s, load_s)
    return longer + (1.0 - _OVERLAP) * shorter


def runs_of(steps: Sequence[Step], blocks: int) -> tuple[PrefixRun, ...]:
    """The leading `blocks` blocks as runs; neighbours from one place become one run."""
    runs: list[PrefixRun] = []
    for step in steps:
        if step.start >= blocks:
            break
        end = min(step.end, blocks)
        last = runs[-1] if runs else None
        if last and last.owner == step.owner and last.tier == step.tier:
            runs[-1] = PrefixRun(step.owner, step.tier, last.start, end)
        else:
            runs.append(PrefixRun(step.owner, step.tier, step.start, end))
    return tuple(runs)
