"""Where a range of an object goes, chunk by chunk, each verified while it is in the cache. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from moonpool.client.spans import Span
from moonpool.kv.checksum import CHECKSUM_BYTES, checksum_of, chunk_checksums


@dataclass(frozen=True, slots=True)
class Target:
    """`body` has room for the span, `edges` for what lies around it in its first and last chunk."""

    span: Span
    body: memoryview
    edges: memoryview

    @property
    def bytes_total(self) -> int:
        """Of whole chunks."""
        return (self.span.last - self.span.first) * self.span.chunk_bytes

    @property
    def plain_bytes(self) -> int:
        """How much of `body`, from its start, is whole chunks; 0 when it begins within one."""
        span = self.span
        return 0 if span.head_bytes else len(self.body) // span.chunk_bytes * span.chunk_bytes

    def are_chunks(self, low: int, high: int, checksums: bytes) -> bool:
        """Whether whole chunks, `body[low:high]`, have their checksums."""
        span = self.span
        at = (span.first + low // span.chunk_bytes) * CHECKSUM_BYTES
        found = chunk_checksums(self.body[low:high], span.chunk_bytes)
        return found == checksums[at : at + len(found)]

    def chunks(self) -> Iterator[tuple[int, list[memoryview]]]:
        """(number of the chunk, where its bytes go, in order), of those after `plain_bytes`."""
        span, size = self.span, self.span.chunk_bytes
        for chunk in range(span.first + self.plain_bytes // size, span.last):
            low = chunk * size - span.start
            yield chunk, self._parts(low, low + size)

    def _parts(self, low: int, high: int) -> list[memoryview]:
        """Places of `[low, high)`, counted from the span's start."""
        body_bytes, head = self.body.nbytes, self.span.head_bytes
        parts = []
        if low < 0:
            parts.append(self.edges[head + low : head + min(high, 0)])
        if high > 0 and low < body_bytes:
            parts.append(self.body[max(low, 0) : min(high, body_bytes)])
        if high > body_bytes:
            rest = head + max(low, body_bytes) - body_bytes
            parts.append(self.edges[rest : head + high - body_bytes])
        return parts


def target_of(span: Span, body: memoryview) -> Target:
    edges = memoryview(bytearray(span.head_bytes + span.rest_bytes))
    return Target(span, body[: span.end - span.start], edges)


def is_chunk(parts: list[memoryview], chunk: int, checksums: bytes) -> bool:
    """Whether these bytes have the chunk's checksum."""
    at = chunk * CHECKSUM_BYTES
    return checksum_of(*parts) == checksums[at : at + CHECKSUM_BYTES]
