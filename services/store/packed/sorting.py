"""Sorting values instead of indices, which a processor does many times faster."""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.store.packed.rows import U64

Column = npt.NDArray[Any]
LOW_BITS = np.uint64(0xFFFF_FFFF)
_LENGTH_BITS = 22  # of a range's length; 42 remain for its start


def order_by_top(values: U64) -> "npt.NDArray[np.int64]":
    """Indices in the order of the upper 32 bits of the values; of fewer than 2**32 of them."""
    packed = (values & ~LOW_BITS) | np.arange(len(values), dtype=np.uint64)
    packed.sort()
    return (packed & LOW_BITS).astype(np.int64)


def has_twins(values: Column) -> bool:
    """Whether two are equal."""
    ordered = np.sort(values)
    return bool(np.any(ordered[1:] == ordered[:-1]))


def sorted_ranges(starts: Column, lengths: Column) -> tuple[Column, Column]:
    """(starts, ends) in the order of starts, of ranges given in whole units of 4096 bytes."""
    if not len(starts) or (
        lengths.max() >> 12 < 1 << _LENGTH_BITS and starts.max() >> 12 < 1 << 40
    ):
        packed = (starts >> 12 << _LENGTH_BITS) | (lengths >> 12)
        packed.sort()
        at = packed >> _LENGTH_BITS << 12
        return at, at + ((packed & ((1 << _LENGTH_BITS) - 1)) << 12)
    order = np.argsort(starts)
    return starts[order], starts[order] + lengths[order]
