"""The seam between dram and what is below it: who takes over what dram evicts."""

from enum import StrEnum
from typing import Protocol

from services.store.objects import StoredObject


class Verdict(StrEnum):
    NO = "no"  # it may go: it lies below already, or is not worth a place there
    BEGUN = "begun"  # it is being taken over, and leaves when that is done
    LATER = "later"  # too much is on its way down: ask again


class Below(Protocol):
    def take_over(self, obj: StoredObject, now_s: float) -> Verdict:
        """About a LIVE, unleased object whose turn it is to go."""
