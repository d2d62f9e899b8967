"""Which parts a large object is moved in. Pure."""

PART_BYTES = 8 << 20  # S3 wants at least 5 MiB, the last one excepted
PARTS_MAX = 10_000  # S3's own limit


def ranges(size_bytes: int, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """[first, end) of each part; one for a small object. ValueError beyond S3's limit of parts."""
    parts = [
        (first, min(first + part_bytes, size_bytes)) for first in range(0, size_bytes, part_bytes)
    ]
    if len(parts) > PARTS_MAX:
        raise ValueError(f"{size_bytes} bytes make more than {PARTS_MAX} parts")
    return parts


def pieces(buffers: list[memoryview], first: int, end: int) -> list[memoryview]:
    """The bytes `[first, end)` of the buffers laid end to end, without a copy."""
    found: list[memoryview] = []
    at = 0
    for buffer in buffers:
        low, high = max(first - at, 0), min(end - at, buffer.nbytes)
        if low < high:
            found.append(buffer[low:high])
        at += buffer.nbytes
    return found
