"""A range of an object, whole chunks around it, and how each chunk proves itself. Pure."""

from dataclasses import dataclass

from moonpool.kv.checksum import CHECKSUM_BYTES, checksum_of
from moonpool.messages.store import GetSlot


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `[start, end)` of an object, and the chunks `[first, last)` that they lie in."""

    start: int
    end: int
    chunk_bytes: int

    @property
    def first(self) -> int:
        return self.start // self.chunk_bytes

    @property
    def last(self) -> int:
        return -(-self.end // self.chunk_bytes)

    @property
    def head_bytes(self) -> int:
        """Of the first chunk, before the range."""
        return self.start - self.first * self.chunk_bytes

    @property
    def rest_bytes(self) -> int:
        """Of the last chunk, after the range."""
        return self.last * self.chunk_bytes - self.end


def bad_chunks_of(
    span: Span, slot: GetSlot, head: memoryview, body: memoryview, rest: memoryview
) -> list[int]:
    """Chunks whose bytes, pieced together, differ from their checksums."""
    bad = []
    for chunk in range(span.first, span.last):
        low = chunk * span.chunk_bytes
        high = low + span.chunk_bytes
        pieces = [body[max(low - span.start, 0) : max(high - span.start, 0)]]
        if low < span.start:
            pieces.insert(0, head)
        if high > span.end:
            pieces.append(rest)
        if checksum_of(*pieces) != slot.checksums[chunk * CHECKSUM_BYTES :][:CHECKSUM_BYTES]:
            bad.append(chunk)
    return bad


def sums_of(body: memoryview, tail: memoryview | bytes, chunk_bytes: int) -> bytes:
    """Checksums of the object that `body` and then `tail` make; whole chunks together, and a tail
    that lies within the last ones."""
    size_bytes = body.nbytes + len(tail)
    sums: list[bytes] = []
    for low in range(0, size_bytes, chunk_bytes):
        high = low + chunk_bytes
        if high <= body.nbytes:
            sums.append(checksum_of(body[low:high]))
        else:
            after = tail[max(low - body.nbytes, 0) : high - body.nbytes]
            sums.append(checksum_of(body[low:high], after))
    return b"".join(sums)


def range_of(size_bytes: int, start: int, length: int | None) -> tuple[int, int]:
    """`[start, end)` within a value, cut at its end."""
    end = size_bytes if length is None else min(size_bytes, start + length)
    return min(start, size_bytes), end
