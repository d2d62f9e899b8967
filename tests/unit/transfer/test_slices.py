"""Cutting loses no byte, invents none, and keeps within its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.transfer.slices import Slice, cut


def arrays(*requests: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(requests, np.int64)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


def moves(slices: list[Slice]) -> set[tuple[int, int]]:
    """Every byte as (local, remote)."""
    return {
        (lo + i, ro + i)
        for piece in slices
        for lo, ro, ln in zip(
            piece.local.tolist(), piece.remote.tolist(), piece.lengths.tolist(), strict=True
        )
        for i in range(ln)
    }


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 60)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 100),
    st.integers(1, 8),
)
def test_slices_hold_every_byte_once_within_limits(
    requests: list[tuple[int, int, int]], slice_bytes: int, ranges_max: int
) -> None:
    columns = arrays(*requests)
    slices = cut(*columns, slice_bytes=slice_bytes, ranges_max=ranges_max)
    total = sum(length for _, _, length in requests)
    assert sum(piece.payload for piece in slices) == total
    assert moves(slices) == {(lo + i, ro + i) for lo, ro, ln in requests for i in range(ln)}
    for piece in slices:
        assert 0 < piece.payload == int(piece.lengths.sum()) <= slice_bytes
        assert 0 < len(piece.lengths) <= ranges_max
        assert int(piece.lengths.min()) > 0
        _requests_are_named(piece, requests)


def _requests_are_named(piece: Slice, requests: list[tuple[int, int, int]]) -> None:
    """Each named request has bytes here, and no byte belongs to another."""
    named = requests[piece.first : piece.last]
    bytes_here = moves([piece])
    owners = [{(lo + i, ro + i) for i in range(ln)} for lo, ro, ln in named]
    assert bytes_here <= set().union(*owners)
    assert all(bytes_here & owner for owner in owners)


def test_neighbours_on_both_sides_become_one_range() -> None:
    (piece,) = cut(*arrays((0, 50, 10), (10, 60, 10), (20, 70, 5)), slice_bytes=99, ranges_max=9)
    assert piece.local.tolist() == [0]
    assert piece.remote.tolist() == [50]
    assert piece.lengths.tolist() == [25]
    assert (piece.first, piece.last) == (0, 3)


@pytest.mark.parametrize("second", [(10, 70, 10), (20, 60, 10), (0, 50, 10)])
def test_neighbours_on_one_side_only_stay_apart(second: tuple[int, int, int]) -> None:
    (piece,) = cut(*arrays((0, 50, 10), second), slice_bytes=99, ranges_max=9)
    assert len(piece.lengths) == 2


def test_a_request_over_many_slices_is_named_in_each() -> None:
    slices = cut(*arrays((0, 0, 25)), slice_bytes=10, ranges_max=9)
    assert [piece.payload for piece in slices] == [10, 10, 5]
    assert [(piece.first, piece.last) for piece in slices] == [(0, 1)] * 3
