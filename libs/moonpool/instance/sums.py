"""Checksums of the blocks in our pool, so that each is computed once, when a block is sealed."""

from collections import OrderedDict

from moonpool.kv import BlockKey


class SumCache:
    """Block key -> packed u64 per layer. A cache: what is missing is computed again. Bounded."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._sums: OrderedDict[BlockKey, bytes] = OrderedDict()

    def get(self, key: BlockKey) -> bytes | None:
        return self._sums.get(key)

    def put(self, key: BlockKey, checksums: bytes) -> None:
        self._sums[key] = checksums
        self._sums.move_to_end(key)
        while len(self._sums) > self._entries_max:
            self._sums.popitem(last=False)

    def forget(self, key: BlockKey) -> None:
        self._sums.pop(key, None)
