"""Filters in front of a lower tier: what they write there, and what is hit for it."""

from pathlib import Path

import pytest

from moonpool.cache import ADMISSION_NAMES, AdmitAll, UsesAdmission
from services.conductor.simulate.cache.generate import generate
from services.conductor.simulate.cache.tiers import TwoTiers
from services.conductor.simulate.cache.tiers_program import play
from services.conductor.simulate.cache.trace import (
    BLOCK_TOKENS,
    STEADY_PASSES,
    Request,
    read_trace,
)

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"


def make_request(at_s: float, *blocks: int) -> Request:
    return Request(at_s, len(blocks) * BLOCK_TOKENS, list(blocks))


def test_what_left_the_upper_tier_is_hit_below_and_written_once() -> None:
    tiers = TwoTiers(AdmitAll(), upper_blocks=2, lower_blocks=9)
    for at_s, blocks in enumerate([(1, 2), (3, 4), (1, 2), (3, 4), (1, 2, 9)]):
        tiers.ask(make_request(float(at_s), *blocks))
    tally = tiers.tally
    assert tally.tokens_hit == tally.tokens_hit_below == 6 * BLOCK_TOKENS
    assert tally.tokens_written == 5 * BLOCK_TOKENS  # 1 to 4, and 9, the tail of the last
    assert tally.hits_per_write == 6 / 5


def test_blocks_of_one_use_are_kept_off_the_lower_tier() -> None:
    tiers = TwoTiers(UsesAdmission(2), upper_blocks=2, lower_blocks=9)
    tiers.ask(make_request(0.0, 1, 2))
    tiers.ask(make_request(1.0, 3, 4))  # 1 and 2 leave, and are forgotten
    tiers.ask(make_request(2.0, 1, 2))  # their second use
    tiers.ask(make_request(3.0, 5, 6))
    tiers.ask(make_request(4.0, 1, 2))
    assert tiers.tally.tokens_written == 2 * BLOCK_TOKENS
    assert tiers.tally.tokens_hit == 2 * BLOCK_TOKENS


def test_a_lower_tier_that_is_full_lets_its_oldest_go() -> None:
    tiers = TwoTiers(AdmitAll(), upper_blocks=1, lower_blocks=2)
    for at_s, block in enumerate([1, 2, 3, 4, 1]):
        tiers.ask(make_request(float(at_s), block))
    assert tiers.tally.tokens_hit == 0
    tiers.ask(make_request(5.0, 3))
    assert tiers.tally.tokens_hit == BLOCK_TOKENS


def test_on_made_up_calls_filters_save_writes_and_each_write_is_worth_more() -> None:
    requests = generate("tools")
    tallies = {name: play(requests, name, 100_000, 1_000_000) for name in ADMISSION_NAMES}
    uses, sketch, everything = (tallies[name] for name in ("uses", "sketch", "all"))
    assert uses.written_share < 0.3 * everything.written_share
    assert uses.hits_per_write > 2 * everything.hits_per_write
    assert sketch.hit_rate == pytest.approx(uses.hit_rate, abs=0.001)
    assert sketch.written_share == pytest.approx(uses.written_share, abs=0.002)
    assert tallies["reuse"].hits_per_write > everything.hits_per_write


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_on_recorded_traffic_the_sketch_is_as_good_as_counting(name: str) -> None:
    path = FOLDER / f"{name}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"no recorded trace at {path}")
    requests = read_trace(path)
    uses, sketch = (
        play(requests, filter_, 1_000_000, 3_000_000, STEADY_PASSES)
        for filter_ in ("uses", "sketch")
    )
    assert sketch.hit_rate >= uses.hit_rate - 0.001
    assert sketch.written_share <= 1.02 * uses.written_share
