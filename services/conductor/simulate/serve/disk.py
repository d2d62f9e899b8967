"""A disk and what lies on it: blocks that memory let go, read one after the other."""

from collections.abc import Callable

from services.conductor.simulate.serve.agenda import Agenda
from services.conductor.simulate.serve.cache import BlockCache
from services.conductor.simulate.serve.machine import NodeCosts


class DiskModel:
    """The `nvme` tier of one store node. Reads and writes wait for one another."""

    def __init__(self, id: str, costs: NodeCosts, cache: BlockCache, agenda: Agenda) -> None:
        self.id = id
        self.cache = cache
        self._costs = costs
        self._agenda = agenda
        self._free_s = 0.0  # when it is through with what was asked of it
        self.read_bytes = 0.0

    def keep(self, blocks: list[int], block_bytes: int) -> None:
        """Memory let these go."""
        if self.cache.blocks_max and blocks:
            self._take(len(blocks) * block_bytes)
            self.cache.add(blocks, self._agenda.now_s)

    def read(self, size_bytes: float, done: Callable[[], None]) -> None:
        """Calls `done` when the bytes are in memory."""
        self.read_bytes += size_bytes
        self._agenda.at(self._take(size_bytes), done)

    def _take(self, size_bytes: float) -> float:
        """When work of that size will be over."""
        start_s = max(self._free_s, self._agenda.now_s)
        seconds = self._costs.nvme_latency_s + size_bytes / self._costs.nvme_bytes_per_s
        self._free_s = start_s + seconds
        return self._free_s

    def check(self) -> None:
        self.cache.check()
