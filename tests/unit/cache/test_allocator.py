"""The segment allocator: ranges never overlap, holes merge, the smallest hole that fits is used."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.cache import OffsetAllocator

PAGE = 4096


def test_sizes_are_rounded_up_to_pages() -> None:
    allocator = OffsetAllocator(10 * PAGE)
    assert allocator.allocate(1) == 0
    assert allocator.allocate(PAGE + 1) == PAGE
    assert allocator.bytes_used == 3 * PAGE
    assert allocator.stats().bytes_padding == 3 * PAGE - 1 - (PAGE + 1)


def test_a_full_segment_answers_none_and_the_whole_comes_back() -> None:
    allocator = OffsetAllocator(4 * PAGE)
    offsets = [allocator.allocate(PAGE) for _ in range(4)]
    assert allocator.allocate(1) is None
    for offset in offsets:
        assert offset is not None
        allocator.free(offset)
    assert allocator.stats().hole_max_bytes == 4 * PAGE
    assert allocator.stats().holes == 1
    assert allocator.stats().fragmentation == 0.0


def test_the_smallest_hole_that_fits_is_taken() -> None:
    allocator = OffsetAllocator(16 * PAGE)
    three = allocator.allocate(3 * PAGE)
    allocator.allocate(PAGE)
    two = allocator.allocate(2 * PAGE)
    allocator.allocate(PAGE)
    assert three is not None
    assert two is not None
    allocator.free(three)
    allocator.free(two)
    assert allocator.allocate(2 * PAGE) == two
    assert allocator.allocate(PAGE) == three


def test_fragmentation_is_the_share_that_one_allocation_cannot_get() -> None:
    allocator = OffsetAllocator(4 * PAGE)
    offsets = [allocator.allocate(PAGE) for _ in range(4)]
    for offset in (offsets[0], offsets[2]):
        assert offset is not None
        allocator.free(offset)
    assert allocator.stats().fragmentation == 0.5
    assert allocator.allocate(2 * PAGE) is None


def test_freeing_twice_is_an_error() -> None:
    allocator = OffsetAllocator(4 * PAGE)
    offset = allocator.allocate(PAGE)
    assert offset is not None
    allocator.free(offset)
    with pytest.raises(KeyError):
        allocator.free(offset)


def test_nothing_and_less_cannot_be_allocated() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        OffsetAllocator(PAGE).allocate(0)
    with pytest.raises(ValueError, match="no page"):
        OffsetAllocator(PAGE - 1)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40 * PAGE)), max_size=60))
def test_ranges_tile_the_segment_after_any_history(steps: list[tuple[bool, int]]) -> None:
    allocator = OffsetAllocator(128 * PAGE)
    live: list[int] = []
    for wants, size in steps:
        if wants or not live:
            offset = allocator.allocate(size)
            if offset is not None:
                live.append(offset)
        else:
            allocator.free(live.pop(size % len(live)))
        allocator.check()


def test_long_churn_of_mixed_sizes_keeps_finding_room() -> None:
    choose = random.Random(7)
    allocator = OffsetAllocator(64 << 20)
    live: list[int] = []
    refused = 0
    for _ in range(20_000):
        offset = allocator.allocate(choose.choice([1 << 20, 1_474_560, 49_152, 5_000]))
        if offset is None:
            refused += 1
        else:
            live.append(offset)
        while allocator.bytes_used > 0.8 * allocator.size_bytes:
            allocator.free(live.pop(choose.randrange(len(live))))
    allocator.check()
    assert refused < 200
