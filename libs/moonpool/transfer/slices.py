"""Cuts a group of requests into slices that a transport runs in one go. Pure.

Neighbours (adjacent on both sides) are merged first, so that the layers of a block that lie next to
each other cost one range; then everything is cut by bytes and by number of ranges.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Column = Ints | list[int]  # a list where there are so few that an array would only cost


FEW = 32  # requests that are cut faster one by one than in columns


@dataclass(slots=True, eq=False)  # never changed; to freeze it would double the price of making it
class Slice:
    """Ranges of one operation between one local region and one grant."""

    local: Column  # offsets into the local region
    remote: Column  # offsets into the grant
    lengths: Column  # > 0
    payload: int  # bytes, the sum of lengths
    first: int  # requests [first, last) of the group have bytes here
    last: int


def shifted(column: Column, base: int) -> list[int]:
    """Addresses, or offsets from elsewhere, as plain numbers."""
    if isinstance(column, list):
        return [value + base for value in column]
    shifted_column: list[int] = (column + base).tolist()
    return shifted_column


def plain(column: Column) -> list[int]:
    """As plain numbers; not to be changed."""
    return column if isinstance(column, list) else shifted(column, 0)


def one(local: int, remote: int, length: int) -> Slice:
    """A single request that fits one slice."""
    return Slice([local], [remote], [length], length, 0, 1)


def together(ranges: list[tuple[int, int, int]], payload: int) -> Slice:
    """All requests, (local, remote, length) each, in one slice: they are `payload` bytes."""
    local: list[int] = []
    remote: list[int] = []
    lengths: list[int] = []
    here_ends = there_ends = -1
    for here, there, length in ranges:
        if here == here_ends and there == there_ends:
            lengths[-1] += length
        else:
            local.append(here)
            remote.append(there)
            lengths.append(length)
        here_ends, there_ends = here + length, there + length
    return Slice(local, remote, lengths, payload, 0, len(ranges))


def cut_few(ranges: list[tuple[int, int, int]], *, slice_bytes: int) -> list[Slice]:
    """What `cut` does, for at most `FEW` requests: (local, remote, length) each."""
    out: list[Slice] = []
    local: list[int] = []
    remote: list[int] = []
    lengths: list[int] = []
    payload, first, index = 0, 0, -1
    for index, (here, there, length) in enumerate(ranges):
        at = 0
        while at < length:
            step = min(length - at, slice_bytes)
            if payload + step > slice_bytes:
                out.append(Slice(local, remote, lengths, payload, first, index + (at > 0)))
                local, remote, lengths = [], [], []
                payload, first = 0, index
            if lengths and local[-1] + lengths[-1] == here and remote[-1] + lengths[-1] == there:
                lengths[-1] += step
            else:
                local.append(here)
                remote.append(there)
                lengths.append(step)
            payload += step
            at, here, there = at + step, here + step, there + step
    out.append(Slice(local, remote, lengths, payload, first, index + 1))
    return out


def cut(
    local: Ints, remote: Ints, lengths: Ints, *, slice_bytes: int, ranges_max: int
) -> list[Slice]:
    """Slices of at most `slice_bytes` and `ranges_max` ranges that together are the requests."""

    ends = np.cumsum(lengths)
    starts = ends - lengths
    m_local, m_remote, m_lengths = _merge(local, remote, lengths)
    p_local, p_remote, p_lengths = _split(m_local, m_remote, m_lengths, slice_bytes)
    borders = _borders(p_lengths, slice_bytes, ranges_max)
    p_ends = np.cumsum(p_lengths)
    out = []
    for a, b in pairwise(borders):
        begin, end = int(p_ends[a] - p_lengths[a]), int(p_ends[b - 1])
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(starts, end, side="left"))
        part = slice(a, b)
        out.append(Slice(p_local[part], p_remote[part], p_lengths[part], end - begin, first, last))
    return out


def _merge(local: Ints, remote: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints]:
    together = (local[:-1] + lengths[:-1] == local[1:]) & (remote[:-1] + lengths[:-1] == remote[1:])
    if not together.any():
        return local, remote, lengths
    heads = np.flatnonzero(np.concatenate(([True], ~together)))
    return local[heads], remote[heads], np.add.reduceat(lengths, heads)


def _split(local: Ints, remote: Ints, lengths: Ints, slice_bytes: int) -> tuple[Ints, Ints, Ints]:
    """Ranges longer than a slice, in pieces of one slice."""
    if int(lengths.max()) <= slice_bytes:
        return local, remote, lengths
    pieces = -(-lengths // slice_bytes)
    owner = np.repeat(np.arange(len(lengths)), pieces)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    shift = within * slice_bytes
    rest = lengths[owner] - shift
    return local[owner] + shift, remote[owner] + shift, np.minimum(rest, slice_bytes)


def _borders(lengths: Ints, slice_bytes: int, ranges_max: int) -> list[int]:
    """Indices at which a new slice begins, with both ends."""
    ends = np.cumsum(lengths)
    borders, at, count = [0], 0, len(lengths)
    while at < count:
        before = int(ends[at - 1]) if at else 0
        by_bytes = int(np.searchsorted(ends, before + slice_bytes, side="right"))
        at = min(max(by_bytes, at + 1), at + ranges_max, count)
        borders.append(at)
    return borders
