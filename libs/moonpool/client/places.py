"""What callers hand in: values, ranges, and registered memory to read into or write from. Pure."""

from operator import index

from moonpool.client.base import Value
from moonpool.client.errors import BadRange
from moonpool.messages import CallerError
from moonpool.transfer.base import Region
from moonpool.transfer.errors import RegionClosed


def view_of(name: str, value: Value) -> memoryview:
    """Its bytes, where they lie. Raises CallerError when it is no plain run of bytes."""
    try:
        view = memoryview(value)
    except TypeError:
        kind = type(value).__name__
        raise CallerError(f"{name!r}: a value is bytes, or memory with bytes, not {kind}") from None
    if not view.c_contiguous:
        raise CallerError(f"{name!r}: a value must lie in one piece")
    return view.cast("B") if view.nbytes else memoryview(b"")


def check_range(start: int, length: int) -> None:
    """Raises BadRange on what is no range of any value."""
    try:
        is_none = index(start) < 0 or index(length) < 0
    except TypeError:
        raise BadRange(f"[{start!r}, +{length!r}) is no range: whole numbers are") from None
    if is_none:
        raise BadRange(f"[{start}, +{length}) is no range")


def check_place(region: Region, offset: int, size_bytes: int) -> None:
    """Raises BadRange when it is not within the region, RegionClosed when that is unregistered."""
    check_range(offset, size_bytes)
    if region.closing:
        raise RegionClosed("the region is unregistered")
    if offset + size_bytes > region.length:
        raise BadRange(f"[{offset}, +{size_bytes}) is outside a region of {region.length} bytes")


def part_of(region: Region, offset: int, size_bytes: int) -> memoryview:
    """Raises as `check_place`."""
    check_place(region, offset, size_bytes)
    return region.view[offset : offset + size_bytes]
