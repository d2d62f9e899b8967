"""The tier seam: the ledger of places in one kind of memory of one node. Pure.

The core asks a tier for places and gives them back; which block goes, and in which order, is the
core's affair. Moving bytes is not the ledger's: peers write and read the `dram` segment themselves,
and a lower tier brings its own asynchronous reader and writer for the shell.
"""

from typing import Any, Protocol

import numpy.typing as npt

from moonpool.messages.store import TierStats


class Ledger(Protocol):
    """What all tiers have in common."""

    @property
    def name(self) -> str:
        """ "dram", "nvme" or "oss", as events and metrics say it."""

    @property
    def bytes_total(self) -> int: ...

    @property
    def bytes_used(self) -> int:
        """Rounded as the tier rounds. 0 <= bytes_used <= bytes_total."""

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that one object could not get, 0.0 to 1.0; 0.0 of a tier that has
        no places, or none free."""

    def footprint(self, size_bytes: int) -> int:
        """What an object of `size_bytes` takes from `bytes_total`."""

    def reserve(self, size_bytes: int) -> int | None:
        """A place for `size_bytes`, or None when there is none. ValueError when not positive."""

    def stats(self, blocks: int, evictions: int) -> TierStats: ...

    def check(self) -> None:
        """Asserts the ledger's invariants."""


class Tier(Ledger, Protocol):
    """Remembers what is taken."""

    def release(self, place: int) -> None:
        """Gives a place back. KeyError when it is not taken."""


class LowerTier(Ledger, Protocol):
    """A tier whose contents outlive the process. Of millions of places it remembers only what is
    free: who has a place knows its size."""

    def restore(self, places: "npt.NDArray[Any]", sizes: "npt.NDArray[Any]") -> "npt.NDArray[Any]":
        """Takes places of an earlier life, of these sizes; which ones they are from now on.
        ValueError when they overlap."""

    def release(self, place: int, size_bytes: int) -> None:
        """Gives back a place that was taken for `size_bytes`. AssertionError when more is given
        back than was taken."""
