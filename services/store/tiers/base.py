"""The tier seam: the ledger of places in one kind of memory of one node. Pure.

The core asks a tier for places and gives them back; which block goes, and in which order, is the
core's affair. Moving bytes is not the ledger's: peers write and read the `dram` segment themselves,
and a lower tier brings its own asynchronous reader and writer for the shell.
"""

from collections.abc import Sequence
from typing import Protocol

from moonpool.messages.store import TierStats


class Tier(Protocol):
    @property
    def name(self) -> str:
        """ "dram", "nvme" or "oss", as events and metrics say it."""

    @property
    def bytes_total(self) -> int: ...

    @property
    def bytes_used(self) -> int:
        """Rounded as the tier rounds. 0 <= bytes_used <= bytes_total."""

    def footprint(self, size_bytes: int) -> int:
        """What an object of `size_bytes` takes from `bytes_total`."""

    def reserve(self, size_bytes: int) -> int | None:
        """A place for `size_bytes`, or None when there is none. ValueError when not positive."""

    def release(self, place: int) -> None:
        """Gives a place back. KeyError when it is not taken."""

    def stats(self, blocks: int, evictions: int) -> TierStats: ...

    def check(self) -> None:
        """Asserts the ledger's invariants."""


class LowerTier(Tier, Protocol):
    """A tier whose contents outlive the process."""

    def restore(self, taken: Sequence[tuple[int, int]]) -> list[int]:
        """Takes (place, size) pairs of an earlier life; the places they have from now on.
        ValueError when they overlap."""
