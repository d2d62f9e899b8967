"""The soak, for less than a minute; and what it calls a leak."""

from pathlib import Path

import pytest

from tests.soak.transfer import show, soak
from tests.soak.verdict import Sample, leaks, troubles


def samples(**last: float) -> list[Sample]:
    """A process that stays as it is, but for what rises to `last` in its second half."""
    level = {"anon_mib": 100.0, "descriptors": 40.0, "threads": 20.0, "regions": 6.0}
    return [level] * 20 + [level | last] * 20


def test_a_process_that_stays_as_it_is_leaks_nothing() -> None:
    assert leaks(samples()) == []


@pytest.mark.parametrize(
    "rise", [{"anon_mib": 140.0}, {"descriptors": 90.0}, {"threads": 40.0}, {"regions": 30.0}]
)
def test_what_rises_and_stays_up_is_a_leak(rise: dict[str, float]) -> None:
    (said,) = leaks(samples(**rise))
    assert next(iter(rise)) in said


def test_wrong_bytes_and_transfers_without_an_end_are_never_excused() -> None:
    assert troubles({"batches": 5.0}) == []
    assert troubles({"batches": 5.0, "damage": 1.0}) == ["1 damage"]
    assert troubles({"batches": 5.0, "hangs": 2.0}) == ["2 hangs"]
    assert troubles({}) == ["no batch was done"]


@pytest.mark.slow
async def test_a_short_soak_with_kills_leaks_hangs_and_damages_nothing(tmp_path: Path) -> None:
    outcome = await soak(18.0, pace_s=0.01, seed=7, out=tmp_path)
    assert outcome.kills >= 1
    assert not outcome.problems(), f"{outcome.problems()}\n{show(outcome)}"
