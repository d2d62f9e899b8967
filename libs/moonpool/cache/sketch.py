"""How often was a key used lately? An estimate in a few bytes per key.

A count-min sketch: four rows of counters up to 15, the estimate is the least of a key's four. All
are halved after a sample of uses, so that what was hot once is forgotten.
"""

from collections.abc import Hashable

ROWS = 4
COUNT_MAX = 15
_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MASK_64 = (1 << 64) - 1
_HALVED = bytes(value >> 1 for value in range(256))


class FrequencySketch:
    """For about `keys_max` keys; halves after ten times as many uses."""

    def __init__(self, keys_max: int) -> None:
        self._bits = max(6, (max(keys_max, 1) - 1).bit_length() + 3)
        self._rows = [bytearray(1 << self._bits) for _ in range(ROWS)]
        self._sample = 10 * max(keys_max, 1)
        self._uses = 0

    def add(self, key: Hashable) -> None:
        """One use."""
        for row, at in zip(self._rows, self._places(key), strict=True):
            if row[at] < COUNT_MAX:
                row[at] += 1
        self._uses += 1
        if self._uses >= self._sample:
            self._rows = [bytearray(row.translate(_HALVED)) for row in self._rows]
            self._uses //= 2

    def count(self, key: Hashable) -> int:
        """At least how often it was used lately (rarely too much), up to COUNT_MAX."""
        return min(row[at] for row, at in zip(self._rows, self._places(key), strict=True))

    def _places(self, key: Hashable) -> list[int]:
        # Block keys are digests: any eight bytes of one are as good as a hash, and the same in
        # every process.
        number = int.from_bytes(key[:8], "little") if isinstance(key, bytes) else hash(key)
        shift = 64 - self._bits
        mixed = [((number ^ (number >> 32)) * seed) & _MASK_64 for seed in _SEEDS]
        return [(value ^ (value >> 29)) * _SEEDS[0] % (1 << 64) >> shift for value in mixed]
