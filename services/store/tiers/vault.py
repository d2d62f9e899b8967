"""The vault seam: where the bytes of a lower tier lie. Blocking; called in threads, many at once.

A ledger (`base.py`) knows the places, a vault fills, reads and empties them. Records prove
themselves: each carries its facts and checksums, so that a torn, misplaced or flipped one is
noticed whoever reads it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from services.store.tiers.record import Facts


class Item(NamedTuple):
    """A record and where it is to be, or is."""

    facts: Facts
    place: int


class Vault(Protocol):
    """Every method but `close` raises VaultAway, VaultRefused or VaultReadOnly, in bounded time."""

    @property
    def name(self) -> str:
        """The tier's."""

    @property
    def is_local(self) -> bool:
        """Opened before the node serves: quick, and on this machine."""

    @property
    def is_shared(self) -> bool:
        """Other nodes put and erase there too: `open` is asked again now and then."""

    def open(self) -> Iterator[Sequence[Item]]:
        """What it holds, least recently written first, in pages; tried again after a failure.
        Nothing else is called before the first page is there."""

    def write(self, item: Item, checksums: bytes, payload: memoryview) -> None:
        """Acknowledged: readable after a crash. RecordDamaged when `payload` does not have these
        checksums; then, as after any error, nothing is stored."""

    def sync(self) -> None:
        """All that was written and erased until now outlives a loss of power too."""

    def read(self, item: Item, target: memoryview) -> bytes:
        """Fills `target` and returns the checksums, which it verified. RecordMissing,
        RecordDamaged."""

    def erase(self, item: Item) -> None:
        """Gone for good; no error when it was not there."""

    def probe(self) -> None:
        """Whether it would answer now."""

    def close(self) -> None:
        """Idempotent."""
