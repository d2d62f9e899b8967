"""Where a key's object is: here, on its way here, below, or nowhere. Pure."""

from collections.abc import Sequence

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.store import GetSlot
from services.store.ladder import Ladder
from services.store.objects import State, StoredObject
from services.store.residents import Residents

_MISS = GetSlot("miss")


class Lookup:
    """Looks, and changes nothing."""

    def __init__(self, residents: Residents, ladder: Ladder) -> None:
        self._residents = residents
        self._ladder = ladder

    def live(self, key: BlockKey) -> StoredObject | None:
        """What can be read in dram now."""
        obj = self._residents.objects.get(key)
        return obj if obj is not None and obj.state is State.LIVE else None

    def owned(self, tenant: TenantId, key: BlockKey) -> StoredObject | None:
        """As `live`, for the tenant who put it."""
        obj = self.live(key)
        return obj if obj is not None and obj.tenant == tenant else None

    def slots(self, keys: Sequence[BlockKey]) -> tuple[list[GetSlot], list[StoredObject]]:
        """(a slot per key, the objects that hit)."""
        hits: list[StoredObject] = []
        return [self._slot(key, hits) for key in keys], hits

    def _slot(self, key: BlockKey, hits: list[StoredObject]) -> GetSlot:
        obj = self.live(key)
        if obj is None:
            return self._slot_below(key)
        hits.append(obj)
        return GetSlot(
            "hit",
            obj.place,
            obj.size_bytes,
            obj.chunk_bytes,
            obj.generation,
            obj.checksums,
            self._residents.tier.name,
        )

    def _slot_below(self, key: BlockKey) -> GetSlot:
        """ "loading" for what lies in a lower tier, whether or not it is on its way already."""
        found = self._ladder.find(key)
        if found is None or (key in self._residents.objects and key not in self._ladder.loading):
            return _MISS
        shelf, record = found
        facts = record.item.facts
        if facts.size_bytes > self._residents.tier.bytes_total:
            return _MISS
        return GetSlot("loading", 0, facts.size_bytes, facts.chunk_bytes, tier=shelf.name)
