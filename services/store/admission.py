"""What is worth a write to a lower tier: what was used before, and what the disk may still bear."""

from moonpool.kv import BlockKey

DAY_S = 86_400.0


class SecondUse:
    """Remembers uses of keys, across their lives in dram, and admits those used often enough.

    Two generations of at most `keys_max` each: the younger fills, then it becomes the older one,
    and what was not used since is forgotten.
    """

    def __init__(self, uses_min: int, keys_max: int = 1 << 17) -> None:
        self._uses_min = uses_min
        self._keys_max = keys_max
        self._young: dict[BlockKey, int] = {}  # key -> uses
        self._old: dict[BlockKey, int] = {}

    def used(self, key: BlockKey) -> None:
        """Its put is the first use."""
        uses = self._young.get(key, self._old.get(key, 0))
        self._young[key] = uses + 1
        if len(self._young) >= self._keys_max:
            self._old, self._young = self._young, {}

    def admits(self, key: BlockKey) -> bool:
        return self._young.get(key, self._old.get(key, 0)) >= self._uses_min

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class WriteBudget:
    """Bytes that may be written per day; unused ones add up to one filling of the tier."""

    def __init__(self, bytes_total: int, fills_per_day: float) -> None:
        """`fills_per_day` 0: no limit."""
        self._limited = fills_per_day > 0
        self._rate = bytes_total * fills_per_day / DAY_S  # bytes/s
        self._max_bytes = float(bytes_total)
        self._left_bytes = float(bytes_total)
        self._at_s: float | None = None

    def take(self, size_bytes: int, now_s: float) -> bool:
        """Whether so much may be written now; if so, it counts as written."""
        if not self._limited:
            return True
        passed_s = now_s - self._at_s if self._at_s is not None else 0.0
        self._left_bytes = min(self._max_bytes, self._left_bytes + passed_s * self._rate)
        self._at_s = now_s
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True
