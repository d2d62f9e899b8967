"""Matching prompts by search: equal to looking at every block, unless an eviction left a hole."""

import random

import hypothesis.strategies as st
from hypothesis import given, settings

from services.conductor.index import BlockIndex
from services.conductor.match import Segment
from services.conductor.places import Place

ALL = (1 << 64) - 1


def make_chain(blocks: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(16 * blocks)


def make_index(held: list[list[tuple[int, int]]], chain: bytes) -> tuple[BlockIndex, list[Place]]:
    """One place per list of block ranges."""
    index = BlockIndex()
    places = [index.places.take(f"o{i}", "dram") for i in range(len(held))]
    for place, ranges in zip(places, held, strict=True):
        for start, end in ranges:
            index.store(place, chain[start * 16 : end * 16])
    index.check()
    return index, places


@settings(deadline=None)
@given(
    blocks=st.integers(0, 300),
    lengths=st.lists(st.integers(0, 300), max_size=12),
    usable=st.integers(0, ALL),
)
def test_prefixes_without_holes_are_found_exactly(
    blocks: int, lengths: list[int], usable: int
) -> None:
    chain = make_chain(blocks)
    index, places = make_index([[(0, min(n, blocks))] for n in lengths], chain)
    found = index.match(chain, usable)
    found.check()
    assert found.segments == index.walk(chain, usable).segments
    expected = {
        place.bit: min(n, blocks)
        for place, n in zip(places, lengths, strict=True)
        if place.bit & usable and min(n, blocks)
    }
    assert found.lengths() == expected


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=4), max_size=6)
)
def test_with_holes_the_walk_is_exact_and_the_search_stays_well_formed(
    held: list[list[tuple[int, int]]],
) -> None:
    chain = make_chain(100)
    index, places = make_index(held, chain)
    owned = [{block for start, end in ranges for block in range(start, end)} for ranges in held]
    walk = index.walk(chain, ALL)
    walk.check()
    for place, blocks in zip(places, owned, strict=True):
        length = next(n for n in range(101) if n not in blocks)
        assert walk.lengths().get(place.bit, 0) == length
        assert index.confirm(chain, place.bit, 0, length)
        assert length == 100 or not index.confirm(chain, place.bit, 0, length + 1)
    found = index.match(chain, ALL)
    found.check()
    for segment in found.segments:  # what the search looked at is true
        for place, blocks in zip(places, owned, strict=True):
            assert not segment.mask & place.bit or segment.start in blocks


def test_a_full_hit_takes_few_look_ups() -> None:
    chain = make_chain(2000)
    index, _ = make_index([[(0, 2000)], [(0, 1337)]], chain)
    looked = 0
    table = index._table

    class Counting(dict):
        def get(self, key, default=None):
            nonlocal looked
            looked += 1
            return table.get(key, default)

    index._table = Counting()
    found = index.match(chain, ALL)
    assert found.segments == [Segment(0, 1337, 3), Segment(1337, 2000, 1)]
    assert looked < 40, "two steps in 2,000 blocks"


def test_storing_twice_and_removing_what_is_not_there_changes_no_count() -> None:
    chain = make_chain(8)
    index, (a, b) = make_index([[(0, 8)], [(0, 4)]], chain)
    assert index.store(a, chain + chain) == 0
    assert index.store(b, chain) == 4
    assert index.remove(a, chain[:32] + chain[:32]) == 2
    assert index.remove(a, make_chain(3, seed=2)) == 0
    assert (a.blocks, b.blocks) == (6, 8)
    index.check()


def test_hundreds_of_different_lengths_stay_bounded_and_true() -> None:
    chain = make_chain(400)
    index, places = make_index([[(0, n)] for n in range(1, 401)], chain)
    found = index.match(chain, (1 << 400) - 1)
    found.check()
    assert len(found.segments) < 120
    lengths = found.lengths()
    for blocks, place in enumerate(places, start=1):
        assert lengths.get(place.bit, 0) <= blocks, "never more than is there"
