"""The life table knows rates, does not forget those that never came back, and fades."""

import random

import pytest

from moonpool.cache.lifetable import LifeTable, LifeTableShape

NO_PRIOR = LifeTableShape(family_blocks=1e-6, all_blocks=1e-6, smooth_rounds=0)


def bin_of(table: LifeTable, age_s: float) -> int:
    return sum(edge <= age_s for edge in table.edges_s)


def test_a_constant_rate_is_found_at_every_age() -> None:
    table, rng = LifeTable([0], NO_PRIOR), random.Random(1)
    for _ in range(20_000):
        began = rng.uniform(0, 1000)
        table.begin(0, began)
        table.end(0, began, began + rng.expovariate(1 / 50))
    table.refit(2000.0)
    for age in (5.0, 20.0, 60.0, 120.0):
        assert table.gains[0][bin_of(table, age)] == pytest.approx(1 / 50, rel=0.15)
    assert table.chance(0, 0.0, 50.0) == pytest.approx(0.63, abs=0.03)
    assert table.chance(0, 30.0, 50.0) == pytest.approx(0.63, abs=0.03)


def test_those_that_still_wait_count_too() -> None:
    table = LifeTable([0], NO_PRIOR)
    for at in range(1000):
        table.begin(0, float(at % 10))
        if at % 10 == 0:
            table.end(0, float(at % 10), float(at % 10) + 20.0)
    table.refit(1000.0)
    assert table.chance(0, 0.0, 900.0) == pytest.approx(0.1, abs=0.03)


def test_a_hope_that_lies_ahead_is_worth_more_the_nearer_it_comes() -> None:
    table = LifeTable([0], NO_PRIOR)
    for at in range(1000):
        table.begin(0, float(at))
        table.end(0, float(at), at + 100.0)
    table.refit(1200.0)
    early, late = table.gains[0][bin_of(table, 5.0)], table.gains[0][bin_of(table, 80.0)]
    assert 0 < early < late


def test_a_class_with_few_episodes_leans_on_its_family() -> None:
    table = LifeTable([0, 0, 1])
    for at in range(5000):
        table.begin(0, at / 10)
        table.end(0, at / 10, at / 10 + 10.0)
        table.begin(2, at / 10)
    table.begin(1, 0.0)
    table.refit(600.0)
    assert table.gains[1][0] > 10 * table.gains[2][0]


def test_what_was_learned_fades() -> None:
    table = LifeTable([0], LifeTableShape(fade=0.5, family_blocks=1e-6, all_blocks=1e-6))
    for at in range(100):
        table.begin(0, float(at))
        table.end(0, float(at), at + 10.0)
    table.refit(200.0)
    before = table.chance(0, 0.0, 60.0)
    for round_ in range(10):
        for at in range(100):
            table.begin(0, 300.0 + at + round_)
        table.refit(1000.0 + round_)
    assert before > 0.9
    assert table.chance(0, 0.0, 60.0) < 0.05


def test_ages_beyond_the_horizon_and_a_clock_that_starts_late_do_no_harm() -> None:
    table = LifeTable([0])
    table.begin(0, 1.7e9)
    table.refit(1.7e9 + 1)
    table.end(0, 1.7e9, 1.7e9 + 1e6)
    table.begin(0, 1.7e9 + 1e6)
    table.refit(1.7e9 + 1e6)
    assert all(gain >= 0 for gain in table.gains[0])
