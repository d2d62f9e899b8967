"""The oss tier's ledger: a budget of bytes, since a bucket has no places."""

from collections.abc import Sequence

from moonpool.messages.store import TierStats


class OssTier:
    """A `Tier` whose places are numbers without meaning."""

    name = "oss"

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < 1:
            raise ValueError(f"a budget of {size_bytes} bytes holds nothing")
        self.bytes_total = size_bytes
        self.bytes_used = 0  # above bytes_total only when more was found in the bucket
        self._sizes: dict[int, int] = {}  # place -> size
        self._last_place = 0

    def footprint(self, size_bytes: int) -> int:
        return size_bytes

    def reserve(self, size_bytes: int) -> int | None:
        if size_bytes < 1:
            raise ValueError(f"cannot reserve {size_bytes} bytes")
        if self.bytes_used + size_bytes > self.bytes_total:
            return None
        return self._take(size_bytes)

    def restore(self, taken: Sequence[tuple[int, int]]) -> list[int]:
        """At any time; what was found is here, whether or not it fits the budget."""
        return [self._take(size_bytes) for _, size_bytes in taken]

    def release(self, place: int) -> None:
        self.bytes_used -= self._sizes.pop(place)

    def stats(self, blocks: int, evictions: int) -> TierStats:
        return TierStats(self.name, blocks, self.bytes_used, self.bytes_total, evictions)

    def check(self) -> None:
        assert self.bytes_used == sum(self._sizes.values())

    def _take(self, size_bytes: int) -> int:
        self._last_place += 1
        self._sizes[self._last_place] = size_bytes
        self.bytes_used += size_bytes
        return self._last_place
