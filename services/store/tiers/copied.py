"""Copying and summing in one go: each piece is summed while it is still in the cache."""

import numpy as np

from moonpool.kv.checksum import chunk_checksums

PIECE_BYTES = 256 << 10  # fits a core's own cache, and is worth letting other threads run


class Copied:
    """Fills `target` from parts that come one after the other, and knows its checksums at the
    end. One thread at a time; others run meanwhile."""

    def __init__(self, target: memoryview, chunk_bytes: int) -> None:
        self.done = 0  # bytes of target filled
        self._target = target
        self._array = np.frombuffer(target, np.uint8)
        self._chunk_bytes = chunk_bytes
        self._summed = 0  # bytes of target that are summed; <= done
        self._sums: list[bytes] = []

    def add(self, part: memoryview) -> None:
        """What goes beyond the target is left out."""
        source = np.frombuffer(part, np.uint8)
        length = min(part.nbytes, self._target.nbytes - self.done)
        for start in range(0, length, PIECE_BYTES):
            end = min(start + PIECE_BYTES, length)
            np.copyto(self._array[self.done + start : self.done + end], source[start:end])
            self._sum(self.done + end)
        self.done += length

    def checksums(self) -> bytes:
        """Of the whole target, once it is full."""
        assert self._summed == self._target.nbytes
        return b"".join(self._sums)

    def _sum(self, filled: int) -> None:
        end = filled - filled % self._chunk_bytes
        if end > self._summed:
            view = self._target[self._summed : end]
            self._sums.append(chunk_checksums(view, self._chunk_bytes))
            self._summed = end
