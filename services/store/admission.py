"""What a disk may still bear of writes."""

DAY_S = 86_400.0


class WriteBudget:
    """Bytes that may be written per day; unused ones add up to one filling of the tier."""

    def __init__(self, bytes_total: int, fills_per_day: float) -> None:
        """`fills_per_day` 0: no limit."""
        self._limited = fills_per_day > 0
        self._rate = bytes_total * fills_per_day / DAY_S  # bytes/s
        self._max_bytes = float(bytes_total)
        self._left_bytes = float(bytes_total)
        self._at_s: float | None = None

    def has(self, size_bytes: int, now_s: float) -> bool:
        """Whether so much may be written now."""
        if not self._limited:
            return True
        passed_s = now_s - self._at_s if self._at_s is not None else 0.0
        self._left_bytes = min(self._max_bytes, self._left_bytes + passed_s * self._rate)
        self._at_s = now_s
        return size_bytes <= self._left_bytes

    def take(self, size_bytes: int, now_s: float) -> bool:
        """The same; if so, it counts as written."""
        if not self.has(size_bytes, now_s):
            return False
        if self._limited:
            self._left_bytes -= size_bytes
        return True
