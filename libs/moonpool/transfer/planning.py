"""From requests to jobs: groups of one operation between one pair of regions, checked and cut."""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moonpool.transfer.arguments import number, op_of
from moonpool.transfer.base import Op, Priority, TransferRequest
from moonpool.transfer.errors import BadTransfer, RegionClosed
from moonpool.transfer.job import Job
from moonpool.transfer.regions import LocalRegion, RegionTable
from moonpool.transfer.remote import OpenedGrant
from moonpool.transfer.slices import FEW, Ints, Slice, cut, cut_few, one, together
from moonpool.transfer.spraying.sizes import BACKGROUND_SLICE_BYTES, SLICE_BYTES_MAX
from moonpool.transfer.wire import RANGES_MAX, refused

if TYPE_CHECKING:
    from moonpool.transfer.batch import TransferBatch

INLINE_BYTES = 1 << 20  # a batch up to this size is copied at once: a thread would cost more
INLINE_RANGES = 64
Group = tuple[Op, LocalRegion, OpenedGrant, Sequence[int]]


def plan(
    table: RegionTable,
    batch: "TransferBatch",
    requests: Sequence[TransferRequest],
    priority: Priority,
    checked: bool,
    expires_s: float,
) -> list[Job]:
    """All that the batch has to do, and how it is to be run. Raises BadTransfer, GrantRefused
    (rights), RegionClosed."""
    jobs = []
    urgent = priority is Priority.FOREGROUND
    slice_max = SLICE_BYTES_MAX if urgent else BACKGROUND_SLICE_BYTES
    for op, local, remote, indices in groups(requests):
        if local.table is not table or remote.opener is not table:
            raise _foreign()
        check_pair(op, local, remote)
        for piece in pieces(requests, local.length, remote, indices, slice_max):
            mine = indices[piece.first : piece.last]
            jobs.append(Job(batch, op, local, remote, piece, mine, priority, expires_s))
    small = len(jobs) <= INLINE_RANGES
    if small and len(jobs) > 1:
        small = sum(job.slice.payload for job in jobs) <= INLINE_BYTES
    for job in jobs:
        piece = job.slice
        job.inline = small and piece.payload <= INLINE_BYTES and len(piece.lengths) <= INLINE_RANGES
        job.checked = checked
    return jobs


def groups(requests: Sequence[TransferRequest]) -> list[Group]:
    """Requests by operation and pair of regions. Raises BadTransfer on foreign regions."""
    if not requests:
        return []
    first = requests[0]
    op, local, remote = first.op, first.local, first.remote
    if len(requests) == 1:
        return [_group(first, (0,))]
    for r in requests:
        if r.op is not op or r.local is not local or r.remote is not remote:
            return _sorted(requests)
    return [_group(first, range(len(requests)))]


def _sorted(requests: Sequence[TransferRequest]) -> list[Group]:
    found: dict[tuple[Op, int, int], list[int]] = {}
    for index, r in enumerate(requests):
        op = r.op if type(r.op) is Op else op_of(r.op)
        found.setdefault((op, id(r.local), id(r.remote)), []).append(index)
    return [_group(requests[indices[0]], indices) for indices in found.values()]


def _group(head: TransferRequest, indices: Sequence[int]) -> Group:
    op, local, remote = head.op, head.local, head.remote
    if not isinstance(local, LocalRegion) or not isinstance(remote, OpenedGrant):
        raise _foreign()
    return op if type(op) is Op else op_of(op), local, remote, indices


def check_pair(op: Op, local: LocalRegion, remote: OpenedGrant) -> None:
    if local.closing:
        raise RegionClosed("local region is unregistered")
    if ("r" if op is Op.READ else "w") not in remote.grant.rights:
        raise refused(remote.grant.segment, "rights")


def pieces(
    requests: Sequence[TransferRequest],
    local_end: int,
    remote: OpenedGrant,
    indices: Sequence[int],
    slice_max: int = SLICE_BYTES_MAX,
) -> list[Slice]:
    """The group, checked against its bounds and cut. Raises BadTransfer."""
    remote_end = remote.grant.length
    if len(indices) == 1:
        r = requests[indices[0]]
        here, there, length = r.local_offset, r.remote_offset, r.length
        if not (type(here) is type(there) is type(length) is int):
            here, there, length = _plain(r)
        fits = remote.ways == 1 or length <= remote.slice_bytes(length)
        if fits and 0 < length <= slice_max:
            if not 0 <= here <= local_end - length:
                raise _outside(local_end)
            if not 0 <= there <= remote_end - length:
                raise _outside(remote_end)
            return [one(here, there, length)]
    mine = requests if len(indices) == len(requests) else [requests[i] for i in indices]
    if len(mine) <= FEW and remote.ways == 1:
        return _few(mine, local_end, remote_end, slice_max)
    lo = _column([r.local_offset for r in mine])
    ro = _column([r.remote_offset for r in mine])
    ln = _column([r.length for r in mine])
    if int(ln.min()) < 1:
        raise _empty()
    for offsets, end in ((lo, local_end), (ro, remote_end)):
        if int(offsets.min()) < 0 or bool((offsets > end - ln).any()):
            raise _outside(end)
    finely = min(remote.slice_bytes(int(ln.sum())), slice_max)
    return cut(lo, ro, ln, slice_bytes=finely, ranges_max=RANGES_MAX)


def _column(values: list[int]) -> Ints:
    """Whole numbers of any kind; numpy itself would cut others off at the point."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except OverflowError as error:
        raise BadTransfer("an offset or a length is beyond 63 bits") from error
    except TypeError as error:
        raise BadTransfer(f"an offset or a length is no whole number: {error}") from error


def _plain(r: TransferRequest) -> tuple[int, int, int]:
    """(local offset, remote offset, length) as plain numbers."""
    return (
        number(r.local_offset, "local_offset"),
        number(r.remote_offset, "remote_offset"),
        number(r.length, "length"),
    )


def _few(
    mine: Sequence[TransferRequest], local_end: int, remote_end: int, slice_max: int
) -> list[Slice]:
    """The same, one by one."""
    ranges, payload = [], 0
    for r in mine:
        here, there, length = r.local_offset, r.remote_offset, r.length
        if not (type(here) is type(there) is type(length) is int):
            here, there, length = _plain(r)
        if length < 1:
            raise _empty()
        if not 0 <= here <= local_end - length:
            raise _outside(local_end)
        if not 0 <= there <= remote_end - length:
            raise _outside(remote_end)
        ranges.append((here, there, length))
        payload += length
    if payload <= slice_max:
        return [together(ranges, payload)]
    return cut_few(ranges, slice_bytes=slice_max)


def _foreign() -> BadTransfer:
    return BadTransfer("local and remote must come from this transfer engine")


def _empty() -> BadTransfer:
    return BadTransfer("a request must have a length of at least one byte")


def _outside(end: int) -> BadTransfer:
    return BadTransfer(f"a request leaves its range of {end} bytes")
