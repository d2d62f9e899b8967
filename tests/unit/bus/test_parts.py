"""Long requests in parts: bounds, order and expiry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.bus.parts import (
    ASSEMBLIES_MAX,
    HELD_MAX_BYTES,
    IDLE_MAX_S,
    PARTS_TOTAL_MAX_BYTES,
    PartsLost,
    Reassembly,
    cut,
)
from moonpool.messages import CapacityError


@given(payload=st.binary(min_size=1, max_size=500), part_bytes=st.integers(1, 600))
def test_what_was_cut_comes_together_again(payload: bytes, part_bytes: int) -> None:
    parts = Reassembly()
    parts.begin("a", len(payload), 0.0)
    pieces = cut(payload, part_bytes)
    results = [parts.add("a", i, bytes(piece), 0.0) for i, piece in enumerate(pieces)]
    assert results[:-1] == [None] * (len(pieces) - 1)
    assert results[-1] == payload
    assert parts.stats()["reserved_bytes"] == 0


def test_a_missing_part_loses_the_request_and_frees_its_room() -> None:
    parts = Reassembly()
    parts.begin("a", 10, 0.0)
    parts.add("a", 0, b"12345", 0.0)
    with pytest.raises(PartsLost):
        parts.add("a", 2, b"12345", 0.0)
    assert len(parts) == 0
    assert parts.stats()["reserved_bytes"] == 0


def test_more_bytes_than_announced_lose_the_request() -> None:
    parts = Reassembly()
    parts.begin("a", 4, 0.0)
    with pytest.raises(PartsLost):
        parts.add("a", 0, b"12345", 0.0)


def test_a_request_whose_next_part_is_overdue_is_forgotten() -> None:
    parts = Reassembly()
    parts.begin("a", 10, 0.0)
    parts.add("a", 0, b"12345", IDLE_MAX_S - 1)
    parts.expire(2 * IDLE_MAX_S - 2)
    assert "a" in parts
    with pytest.raises(PartsLost):
        parts.add("a", 1, b"12345", 2 * IDLE_MAX_S)
    assert parts.expired == 1


def test_room_is_bounded_in_bytes_and_in_number() -> None:
    parts = Reassembly()
    with pytest.raises(CapacityError):
        parts.begin("huge", PARTS_TOTAL_MAX_BYTES + 1, 0.0)
    for number in range(HELD_MAX_BYTES // PARTS_TOTAL_MAX_BYTES):
        parts.begin(f"big{number}", PARTS_TOTAL_MAX_BYTES, 0.0)
    with pytest.raises(CapacityError):
        parts.begin("one more", 1, 0.0)
    many = Reassembly()
    for number in range(ASSEMBLIES_MAX):
        many.begin(str(number), 1, 0.0)
    with pytest.raises(CapacityError):
        many.begin("one more", 1, 0.0)
    many.begin("later", 1, IDLE_MAX_S + 1)
