"""What readers call corrupt, looked at again: only what really is so is dropped. Pure."""

from collections import Counter
from collections.abc import Sequence

from moonpool.kv import BlockKey
from services.store.leases import Leases
from services.store.lookup import Lookup
from services.store.objects import State, StoredObject
from services.store.residents import Residents

INSPECTION_MAX_S = 600.0  # far beyond what comparing a message's worth of objects takes


class Inspections:
    """Holds what the shell looks at meanwhile."""

    def __init__(
        self, residents: Residents, lookup: Lookup, leases: Leases, counters: Counter[str]
    ) -> None:
        self._residents = residents
        self._lookup = lookup
        self._leases = leases
        self._counters = counters

    def begin(
        self, keys: Sequence[BlockKey], now_s: float
    ) -> tuple[int, list[StoredObject | None]]:
        """(lease id, object or None per key). Not a use. Raises TooManySessions."""
        self._leases.require_room()
        found = [self._lookup.live(key) for key in keys]
        here = [obj for obj in found if obj is not None]
        for obj in here:
            self._residents.hold(obj)
        return (self._leases.open(here, now_s + INSPECTION_MAX_S) if here else 0), found

    def finish(self, found: Sequence[StoredObject | None], sound: Sequence[bool]) -> list[str]:
        """Per key "removed" (it was corrupt, pinned or not), "intact" or "miss". The lease is the
        caller's to end."""
        results = []
        for obj, is_sound in zip(found, sound, strict=True):
            if obj is None or obj.state is not State.LIVE:
                results.append("miss")
            elif is_sound:
                results.append("intact")
            else:
                self._residents.drop(obj)
                results.append("removed")
            self._counters[f"inspections_{results[-1]}"] += 1
        return results
