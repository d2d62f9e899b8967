"""From requests to slices: groups of one operation between one pair of regions, checked and cut."""

from collections.abc import Sequence

import numpy as np

from moonpool.transfer.base import Op, TransferRequest
from moonpool.transfer.errors import BadTransfer, RegionClosed
from moonpool.transfer.regions import LocalRegion
from moonpool.transfer.remote import OpenedGrant
from moonpool.transfer.slices import FEW, Slice, cut, cut_few, one, together
from moonpool.transfer.spraying.sizes import SLICE_BYTES_MAX
from moonpool.transfer.wire import RANGES_MAX, refused

Group = tuple[Op, LocalRegion, OpenedGrant, Sequence[int]]


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
        found.setdefault((r.op, id(r.local), id(r.remote)), []).append(index)
    return [_group(requests[indices[0]], indices) for indices in found.values()]


def _group(head: TransferRequest, indices: Sequence[int]) -> Group:
    local, remote = head.local, head.remote
    if not isinstance(local, LocalRegion) or not isinstance(remote, OpenedGrant):
        raise BadTransfer("local and remote must come from this transfer engine")
    return head.op, local, remote, indices


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
) -> list[Slice]:
    """The group, checked against its bounds and cut. Raises BadTransfer."""
    remote_end = remote.grant.length
    if len(indices) == 1:
        r = requests[indices[0]]
        here, there, length = r.local_offset, r.remote_offset, r.length
        fits = remote.ways == 1 or length <= remote.slice_bytes(length)
        if fits and 0 < length <= SLICE_BYTES_MAX:
            if not 0 <= here <= local_end - length:
                raise _outside(local_end)
            if not 0 <= there <= remote_end - length:
                raise _outside(remote_end)
            return [one(here, there, length)]
    mine = requests if len(indices) == len(requests) else [requests[i] for i in indices]
    if len(mine) <= FEW and remote.ways == 1:
        return _few(mine, local_end, remote_end)
    try:
        lo = np.array([r.local_offset for r in mine], np.int64)
        ro = np.array([r.remote_offset for r in mine], np.int64)
        ln = np.array([r.length for r in mine], np.int64)
    except OverflowError as error:
        raise BadTransfer("an offset or a length is beyond 63 bits") from error
    if int(ln.min()) < 1:
        raise _empty()
    for offsets, end in ((lo, local_end), (ro, remote_end)):
        if int(offsets.min()) < 0 or bool((offsets > end - ln).any()):
            raise _outside(end)
    finely = remote.slice_bytes(int(ln.sum()))
    return cut(lo, ro, ln, slice_bytes=finely, ranges_max=RANGES_MAX)


def _few(mine: Sequence[TransferRequest], local_end: int, remote_end: int) -> list[Slice]:
    """The same, one by one."""
    ranges, payload = [], 0
    for r in mine:
        here, there, length = r.local_offset, r.remote_offset, r.length
        if length < 1:
            raise _empty()
        if not 0 <= here <= local_end - length:
            raise _outside(local_end)
        if not 0 <= there <= remote_end - length:
            raise _outside(remote_end)
        ranges.append((here, there, length))
        payload += length
    if payload <= SLICE_BYTES_MAX:
        return [together(ranges, payload)]
    return cut_few(ranges, slice_bytes=SLICE_BYTES_MAX)


def _empty() -> BadTransfer:
    return BadTransfer("a request must have a length of at least one byte")


def _outside(end: int) -> BadTransfer:
    return BadTransfer(f"a request leaves its range of {end} bytes")
