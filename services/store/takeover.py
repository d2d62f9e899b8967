"""A committed object takes over the key of what lay there before: readers see old or new. Pure."""

from moonpool.kv import BlockKey
from services.store.ladder import Ladder
from services.store.objects import State, StoredObject
from services.store.residents import Residents

_UNDER_WAY = (State.WRITING, State.VERIFYING)


class Takeover:
    """The last step of a put. What was replaced keeps its place until its last reader is gone."""

    def __init__(self, residents: Residents, ladder: Ladder) -> None:
        self._residents = residents
        self._ladder = ladder

    def commit(self, obj: StoredObject, takes: bytes, checksums: bytes, now_s: float) -> str:
        """Makes a verified object readable, under its own key or under `takes`: "committed"; or
        drops it: "busy" (another put of that key runs), "exists" (another tenant's)."""
        if takes and (refusal := self._refusal(obj, BlockKey(takes))):
            self._residents.drop(obj)
            return refusal
        old = self._residents.objects.get(BlockKey(takes)) if takes else None
        if old is not None:
            self._residents.drop(old)
        if takes:
            self._rename(obj, BlockKey(takes))
        self._ladder.supersede(obj.key)  # first: a pin looks whether a copy lies below
        self._residents.commit(obj, checksums, now_s)
        self._residents.notes.written(obj.tenant, obj.key, now_s)
        return "committed"

    def _refusal(self, obj: StoredObject, key: BlockKey) -> str:
        old, below = self._residents.objects.get(key), self._ladder.find(key)
        if old is not None and old.state in _UNDER_WAY:
            return "busy"
        is_others = (old is not None and old.tenant != obj.tenant) or (
            below is not None and below[1].tenant != obj.tenant
        )
        return "exists" if is_others else ""

    def _rename(self, obj: StoredObject, key: BlockKey) -> None:
        objects = self._residents.objects
        del objects[obj.key]
        obj.key = key
        objects[key] = obj
