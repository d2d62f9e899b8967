"""Filters in front of slower tiers: blocks of one use are kept off the disk."""

import random

import pytest

from moonpool.cache import (
    ADMISSION_NAMES,
    AdmissionFilter,
    AdmitAll,
    ReuseAdmission,
    UsesAdmission,
    make_admission,
)
from moonpool.cache.sketch import COUNT_MAX, FrequencySketch


def test_a_sketch_never_counts_too_little_and_rarely_too_much() -> None:
    sketch, rng = FrequencySketch(1000), random.Random(5)
    uses: dict[bytes, int] = {}
    for _ in range(4000):
        key = rng.randrange(1000).to_bytes(16, "little")
        uses[key] = uses.get(key, 0) + 1
        sketch.add(key)
    assert all(sketch.count(key) >= min(count, COUNT_MAX) for key, count in uses.items())
    wrong = sum(sketch.count(key) > count for key, count in uses.items())
    assert wrong < len(uses) * 0.02


def test_a_sketch_forgets_by_halves() -> None:
    sketch = FrequencySketch(64)
    for _ in range(10):
        sketch.add("hot")
    for other in range(630):
        sketch.add(other)
    assert sketch.count("hot") <= 6


@pytest.mark.parametrize("name", ["uses", "sketch", "reuse"])
def test_a_block_of_one_use_is_not_worth_a_write_and_one_of_two_is(name: str) -> None:
    admission = make_admission(name)
    admission.used("once", 0.0)
    admission.used("twice", 0.0)
    admission.used("twice", 30.0)
    assert not admission.admits("never", 40.0)
    assert not admission.admits("once", 40.0)
    assert admission.admits("twice", 40.0)


@pytest.mark.parametrize("name", ["uses", "sketch"])
def test_uses_are_counted_up_to_what_was_asked_for(name: str) -> None:
    admission = make_admission(name, 4)
    for _ in range(3):
        admission.used("key", 0.0)
    assert not admission.admits("key", 0.0)
    admission.used("key", 0.0)
    assert admission.admits("key", 0.0)
    assert not make_admission(name, 1).admits("never", 0.0)


def test_filters_have_names_and_others_are_refused() -> None:
    assert ADMISSION_NAMES == ("uses", "sketch", "reuse", "all")
    with pytest.raises(ValueError, match="none of uses, sketch"):
        make_admission("oracle")
    with pytest.raises(ValueError, match="up to 15 uses, not 16"):
        make_admission("sketch", 16)


def test_counted_uses_are_forgotten_two_generations_later() -> None:
    admission = UsesAdmission(2, keys_max=10)
    admission.used("a", 0.0)
    admission.used("a", 0.0)
    for number in range(9):
        admission.used(number, 0.0)
    assert admission.admits("a", 0.0)  # of the older generation now
    for number in range(20, 40):
        admission.used(number, 0.0)
    assert not admission.admits("a", 0.0)
    assert len(admission) <= 20


def test_without_a_filter_everything_is_written() -> None:
    admission: AdmissionFilter = AdmitAll()
    admission.used("a", 0.0)
    assert admission.admits("b", 0.0)


def test_reuse_admission_learns_when_a_second_use_no_longer_promises_a_third() -> None:
    admission = ReuseAdmission(within_s=600.0)
    for number in range(2000):
        now = number * 1.0
        admission.used(("pair", number), now)
        if number >= 20:
            admission.used(("pair", number - 20), now)
    admission.used("new", 2001.0)
    assert admission.admits("new", 2002.0)  # most are used a second time, soon
    assert not admission.admits("new", 2400.0)  # it would have been used by now
    assert not admission.admits(("pair", 1500), 2002.0)  # and never a third time


def test_reuse_admission_remembers_a_bounded_number_of_keys() -> None:
    admission = ReuseAdmission(keys_max=100)
    for number in range(500):
        admission.used(number, float(number))
    assert not admission.admits(0, 500.0)
    assert len(admission._last) == 100
