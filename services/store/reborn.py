"""Objects of an earlier life that are being brought back into dram. Pure."""

from collections import Counter

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.objects import State, StoredObject
from services.store.residents import Residents


class Reborn:
    """Each is VERIFYING, in the set that it shares with the core, from `begin` to `finish`."""

    def __init__(
        self, residents: Residents, verifying: set[StoredObject], counters: Counter[str]
    ) -> None:
        self._residents = residents
        self._verifying = verifying
        self._counters = counters

    def begin(
        self, key: BlockKey, tenant: TenantId, size_bytes: int, chunk_bytes: int
    ) -> StoredObject | None:
        """A place for it; None when its key is taken, or no room is free: nobody goes for it. What
        others have changed since counts as taken."""
        if key in self._residents.objects or self._residents.notes.is_void(tenant, key):
            return None
        place = self._residents.tier.reserve(size_bytes)
        if place is None:
            return None
        generation = self._residents.next_generation()
        obj = StoredObject(key, tenant, size_bytes, chunk_bytes, place, generation, State.VERIFYING)
        self._residents.add(obj)
        self._verifying.add(obj)
        return obj

    def finish(self, obj: StoredObject, checksums: bytes, now_s: float) -> None:
        """`checksums` empty: its bytes are not what they were. What was changed elsewhere while it
        was read counts as lost."""
        self._verifying.remove(obj)
        is_void = self._residents.notes.is_void(obj.tenant, obj.key)
        if len(checksums) == obj.checksums_bytes and not is_void:
            self._residents.commit(obj, checksums, now_s)
            self._counters["restored_sound"] += 1
        else:
            self._residents.drop(obj)
            self._counters["restored_lost"] += 1
