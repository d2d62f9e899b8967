"""One job on its way through an adapter: its ranges as addresses, and how far they are posted."""

from collections.abc import Iterator

from moonpool.transfer.job import Job
from moonpool.transfer.slices import plain, shifted
from moonpool.transfer.transports.rdma_memory import Registration
from moonpool.transfer.transports.rdma_queue import Queue

Ranges = tuple[list[int], list[int], list[int]]  # here, there, lengths


class Flight:
    __slots__ = ("here", "job", "keys", "lengths", "memory", "posted", "queue", "there", "unended")

    def __init__(
        self, job: Job, queue: Queue, memory: Registration, rkey: int, there: int, longest: int
    ) -> None:
        piece = job.slice
        self.job = job
        self.queue = queue
        self.memory = memory
        self.keys = (memory.lkey, rkey)
        self.here = shifted(piece.local, job.local.address)
        self.there = shifted(piece.remote, there)
        self.lengths = plain(piece.lengths)
        if max(self.lengths) > longest:
            self._split(longest)
        self.posted = 0  # ranges, 0 <= posted <= len(lengths)
        self.unended = 0  # chains posted whose end is not known

    def _split(self, longest: int) -> None:
        """Into ranges that one request of the adapter can carry."""
        whole = list(zip(self.here, self.there, self.lengths, strict=True))
        pieces = [part for one in whole for part in _parts(*one, longest)]
        self.here, self.there, self.lengths = (list(column) for column in zip(*pieces, strict=True))

    @property
    def left(self) -> int:
        return len(self.lengths) - self.posted

    def take(self, count: int) -> Ranges:
        """The next `count` ranges, which are posted now."""
        start, self.posted = self.posted, self.posted + count
        part = slice(start, self.posted)
        return self.here[part], self.there[part], self.lengths[part]

    @property
    def done(self) -> bool:
        return not self.left and not self.unended


def _parts(here: int, there: int, length: int, longest: int) -> Iterator[tuple[int, int, int]]:
    for at in range(0, length, longest):
        yield here + at, there + at, min(longest, length - at)
