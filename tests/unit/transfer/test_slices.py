"""Cutting loses no byte, invents none, and keeps within its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.transfer.slices import FEW, Slice, cut, cut_few, plain, together


def arrays(*requests: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(requests, np.int64)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


def moves(slices: list[Slice]) -> set[tuple[int, int]]:
    """Every byte as (local, remote)."""
    return {
        (lo + i, ro + i)
        for piece in slices
        for lo, ro, ln in zip(
            plain(piece.local), plain(piece.remote), plain(piece.lengths), strict=True
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
    few = cut_few(requests, slice_bytes=slice_bytes)
    _hold_every_byte_once(few, requests, slice_bytes, ranges_max=FEW)
    total = sum(length for _, _, length in requests)
    _hold_every_byte_once([together(requests, total)], requests, total, ranges_max=FEW)
    slices = cut(*columns, slice_bytes=slice_bytes, ranges_max=ranges_max)
    _hold_every_byte_once(slices, requests, slice_bytes, ranges_max)


def _hold_every_byte_once(
    slices: list[Slice], requests: list[tuple[int, int, int]], slice_bytes: int, ranges_max: int
) -> None:
    total = sum(length for _, _, length in requests)
    assert sum(piece.payload for piece in slices) == total
    assert moves(slices) == {(lo + i, ro + i) for lo, ro, ln in requests for i in range(ln)}
    for piece in slices:
        assert 0 < piece.payload == sum(plain(piece.lengths)) <= slice_bytes
        assert 0 < len(piece.lengths) <= ranges_max
        assert min(plain(piece.lengths)) > 0
        _requests_are_named(piece, requests)


def _requests_are_named(piece: Slice, requests: list[tuple[int, int, int]]) -> None:
    """Each named request has bytes here, and no byte belongs to another."""
    named = requests[piece.first : piece.last]
    bytes_here = moves([piece])
    owners = [{(lo + i, ro + i) for i in range(ln)} for lo, ro, ln in named]
    assert bytes_here <= set().union(*owners)
    assert all(bytes_here & owner for owner in owners)


def test_neighbours_on_both_sides_become_one_range() -> None:
    requests = [(0, 50, 10), (10, 60, 10), (20, 70, 5)]
    for slices in (
        cut(*arrays(*requests), slice_bytes=99, ranges_max=9),
        cut_few(requests, slice_bytes=99),
        [together(requests, 25)],
    ):
        (piece,) = slices
        assert plain(piece.local) == [0]
        assert plain(piece.remote) == [50]
        assert plain(piece.lengths) == [25]
        assert (piece.first, piece.last) == (0, 3)


@pytest.mark.parametrize("second", [(10, 70, 10), (20, 60, 10), (0, 50, 10)])
def test_neighbours_on_one_side_only_stay_apart(second: tuple[int, int, int]) -> None:
    requests = [(0, 50, 10), second]
    for slices in (
        cut(*arrays(*requests), slice_bytes=99, ranges_max=9),
        cut_few(requests, slice_bytes=99),
        [together(requests, 20)],
    ):
        (piece,) = slices
        assert len(piece.lengths) == 2


def test_a_request_over_many_slices_is_named_in_each() -> None:
    slices = cut(*arrays((0, 0, 25)), slice_bytes=10, ranges_max=9)
    assert [piece.payload for piece in slices] == [10, 10, 5]
    assert [(piece.first, piece.last) for piece in slices] == [(0, 1)] * 3
