"""Blocks in dram that queued requests will read: they are passed over when others must go, for a
while, and no use is counted for it. Pure.

It is a preference, not a promise: when nothing else may go, they go, longest awaited first.
"""

from collections import OrderedDict
from collections.abc import Iterator

from moonpool.kv import BlockKey

AWAITED_S = 30.0  # a request that has not come by then is not waited for


class Awaited:
    """At most `bytes_max` of them: the rest of the tier stays free to turn over."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._until: OrderedDict[BlockKey, tuple[float, int]] = OrderedDict()  # soonest over first

    def expect(self, key: BlockKey, size_bytes: int, now_s: float) -> bool:
        """Whether it is awaited from now on; asking again renews it."""
        self.came(key)
        if self._bytes + size_bytes > self._bytes_max:
            return False
        self._until[key] = (now_s + AWAITED_S, size_bytes)
        self._bytes += size_bytes
        return True

    def came(self, key: BlockKey) -> None:
        """It was read, or is gone: not awaited any more. Idempotent."""
        known = self._until.pop(key, None)
        if known is not None:
            self._bytes -= known[1]

    def take_over_due(self, now_s: float) -> list[BlockKey]:
        """Those for whom nobody came in time; they are awaited no more."""
        due: list[BlockKey] = []
        while self._until:
            key, (until_s, _) = next(iter(self._until.items()))
            if until_s > now_s:
                break
            self.came(key)
            due.append(key)
        return due

    def __iter__(self) -> Iterator[BlockKey]:
        """Longest awaited first."""
        return iter(self._until)

    def __contains__(self, key: object) -> bool:
        return key in self._until

    def __len__(self) -> int:
        return len(self._until)

    def check(self) -> None:
        """Asserts that the sum is that of its parts."""
        assert self._bytes == sum(size for _, size in self._until.values()) <= self._bytes_max
        times = [until_s for until_s, _ in self._until.values()]
        assert times == sorted(times)
