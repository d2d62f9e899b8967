"""An object to be written, as it lies in memory."""

from dataclasses import dataclass

from moonpool.client.base import Place
from moonpool.client.spans import sums_of
from moonpool.kv import BlockKey


@dataclass(frozen=True, slots=True)
class Source:
    """An object to be written: bytes of somebody's memory, and a tail of a few hundred bytes."""

    key: BlockKey
    body: Place
    body_bytes: int  # >= 1
    tail: bytes
    chunk_bytes: int
    takes: bool = False  # in place of what lies under the key

    @property
    def size_bytes(self) -> int:
        return self.body_bytes + len(self.tail)

    def checksums(self) -> bytes:
        region, at = self.body
        return sums_of(region.view[at : at + self.body_bytes], self.tail, self.chunk_bytes)
