"""Order: is a numbered message the next, one that we have, proof of a gap, or of a new start?

The engine numbers its batches from 0 at each of its starts, and a replay repeats some. Which of the
two a lower number is, its time tells. Pure.
"""

from enum import StrEnum


class Verdict(StrEnum):
    NEXT = "next"
    SEEN = "seen"
    GAP = "gap"  # batches before it are missing
    RESTART = "restart"  # the engine began anew: what it held before is gone


class Order:
    def __init__(self) -> None:
        self.next_seq = 0
        self._last_unix_s = 0.0

    def judge(self, seq: int, unix_s: float) -> Verdict:
        """Changes nothing."""
        if seq == self.next_seq:
            return Verdict.NEXT
        if seq > self.next_seq:
            return Verdict.GAP
        return Verdict.SEEN if unix_s <= self._last_unix_s else Verdict.RESTART

    def took(self, seq: int, unix_s: float) -> None:
        """The batch counts; batches between it and the last one, if any, are lost."""
        self.next_seq = seq + 1
        self._last_unix_s = max(self._last_unix_s, unix_s)

    def restart(self) -> None:
        """The next batch is expected to be the engine's first."""
        self.next_seq = 0
