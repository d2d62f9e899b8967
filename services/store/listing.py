"""What a tenant can ask about all that is its own: names, and to have everything removed."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NoReturn

from moonpool.clock import Clock
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.store import ListReply, ListRequest
from services.store.core import StoreCore
from services.store.errors import BadRequest
from services.store.mover import Mover
from services.store.names import Named, Names, identify
from services.store.objects import State

PAGE_MAX = 1000
LEARN_MAX = 32  # names read from lower tiers per look
LOOK_S = 0.2
WIPE_STEP = 1000  # objects between two looks at the loop


class Listing:
    """Keeps `Names` up to date with what the core says has changed."""

    def __init__(self, core: StoreCore, segment: memoryview, mover: Mover) -> None:
        self.names = Names()
        self._core = core
        self._segment = segment
        self._mover = mover

    def changed(self, tier: str, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        is_dram = tier == self._core.residents.tier.name
        self.names.changed(tier, stored, removed, self._in_dram if is_dram else _not_here)

    async def run(self, clock: Clock) -> NoReturn:
        """Reads the names of objects that lie in lower tiers since before the start, a few at a
        time, until cancelled."""
        while True:
            await clock.sleep(LOOK_S)
            await self._learn()

    async def _learn(self) -> None:
        for key in list(islice(self.names.unread, LEARN_MAX)):
            found = self._core.ladder.find(key)
            if found is None:
                self.names.learn(key, None)
                continue
            shelf, record = found
            view = await self._mover.read(shelf, record)
            self.names.learn(key, identify(record.tenant, view) if view is not None else None)

    async def learn_all(self) -> None:
        """Returns when all names are read."""
        left = len(self.names.unread)
        while left:
            await self._learn()
            if len(self.names.unread) >= left:  # a tier does not answer
                return
            left = len(self.names.unread)

    def keys_with(
        self, tenant: TenantId, prefix: str, after: str, limit: int
    ) -> tuple[list[BlockKey], str, bool]:
        """(keys of the next names with this prefix, the last name, whether there are more)."""
        names, more = self.names.page(tenant, prefix, after, limit)
        keys = [self.names.key_of(tenant, each.name) for each in names]
        return keys, names[-1].name if names else after, more

    def page(self, request: ListRequest) -> ListReply:
        """Raises BadRequest."""
        if request.limit < 1:
            raise BadRequest(f"a list of {request.limit} names")
        limit = min(request.limit, PAGE_MAX)
        names, more = self.names.page(request.tenant, request.prefix, request.after, limit)
        return ListReply(names, more, len(self.names.unread))

    async def wipe(self, tenant: TenantId, now_s: float) -> int:
        """Removes all of a tenant's, pinned or not; how many objects. Lets others in between."""
        removed = 0
        for keys in _slices(self.keys_of(tenant), WIPE_STEP):
            self._core.pin(tenant, keys, "none", 0.0, now_s)
            results = self._core.remove(tenant, keys, now_s)
            removed += sum(result in ("removed", "leased") for result in results)
            await asyncio.sleep(0)
        return removed

    def keys_of(self, tenant: TenantId) -> list[BlockKey]:
        objects, shelves = self._core.residents.objects, self._core.ladder.shelves
        keys = {key: None for key, obj in objects.items() if obj.tenant == tenant}
        for shelf in shelves:
            keys |= dict.fromkeys(shelf.keys_of(tenant))
        return list(keys)

    def _in_dram(self, key: BlockKey) -> Named | None:
        obj = self._core.residents.objects.get(key)
        if obj is None or obj.state is not State.LIVE:
            return None
        return identify(obj.tenant, self._segment[obj.place : obj.place + obj.size_bytes])


def _not_here(key: BlockKey) -> Named | None:
    return None


def _slices(keys: list[BlockKey], step: int) -> Iterator[list[BlockKey]]:
    return (keys[start : start + step] for start in range(0, len(keys), step))
