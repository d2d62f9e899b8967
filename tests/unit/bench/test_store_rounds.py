"""Rounds of the store's benchmark: fair turns, and ratios that say who is faster."""

import asyncio

import pytest

from bench.store import mooncake as rival
from bench.store.rounds import Compared, compare, percentile, table
from bench.store.versus import versus_mooncake


def make_compared() -> Compared:
    return Compared("x_over_y", "x", "y", 1_000_000)


def test_sides_take_turns_and_who_goes_first_changes() -> None:
    turns: list[str] = []

    async def ours() -> list[float]:
        turns.append("o")
        return [1.0, 2.0, 9.0]

    async def theirs() -> list[float]:
        turns.append("t")
        return [4.0]

    compared = make_compared()
    asyncio.run(compare(compared, ours, theirs, 3))
    assert "".join(turns) == "ot" + "ot" + "to" + "ot"  # the first two are not counted
    assert compared.ours_s == [2.0] * 3
    assert compared.ratio == 2.0


def test_a_ratio_is_the_median_of_rounds_not_of_sides() -> None:
    compared = make_compared()
    compared.ours_s, compared.theirs_s = [1.0, 10.0, 1.0], [2.0, 10.0, 4.0]
    assert compared.ratio == 2.0
    row = compared.row()
    assert (row["ratio_min"], row["ratio_max"], row["rounds"]) == (1.0, 4.0, 3)
    assert row["ours_gb_s"] == 0.001
    assert "x_over_y" in table({compared.name: row})


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.99) == 1.0


def test_a_rival_that_cannot_run_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(rivals: object) -> rival.Unavailable:
        return rival.Unavailable("no such wheel")

    monkeypatch.setattr(rival, "python_with", missing)
    done, why = asyncio.run(versus_mooncake(None, None, 1))  # type: ignore[arg-type]
    assert (done, why) == ([], "no such wheel")
