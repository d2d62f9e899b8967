"""What the ladder orders and the mover does: one record from one tier to another, or away."""

from dataclasses import dataclass
from enum import StrEnum

from services.store.objects import StoredObject
from services.store.records import Record
from services.store.shelf import Shelf


class Outcome(StrEnum):
    DONE = "done"
    LOST = "lost"  # the source is not what it should be: dropped
    FAILED = "failed"  # the tier did not do it


@dataclass(frozen=True, slots=True, eq=False)
class Demotion:
    """dram -> shelf."""

    obj: StoredObject
    shelf: Shelf
    record: Record
    stays: bool = False  # in dram: it is copied to be durable, not to make room


@dataclass(frozen=True, slots=True, eq=False)
class Promotion:
    """shelf -> dram."""

    shelf: Shelf
    record: Record
    obj: StoredObject


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """From one shelf to the one below."""

    source: Shelf
    source_record: Record
    shelf: Shelf
    record: Record


@dataclass(frozen=True, slots=True, eq=False)
class Erasure:
    shelf: Shelf
    record: Record


Move = Demotion | Promotion | Descent | Erasure
