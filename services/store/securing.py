"""Objects made durable while somebody waits: copied below, and acknowledged only then."""

from collections.abc import Callable, Sequence

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.store import PutEndItem
from services.store.core import StoreCore
from services.store.mover import Mover

DURABLE_MAX_S = 4.0  # longest wait for lower tiers


class Securing:
    """One per node. `settle` passes on what the core changed; `now` is the node's clock."""

    def __init__(
        self,
        core: StoreCore,
        mover: Mover,
        settle: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._core = core
        self._mover = mover
        self._settle = settle
        self._now = now

    async def wait(self, keys: Sequence[BlockKey], wait_s: float = DURABLE_MAX_S) -> set[BlockKey]:
        """Which of them do not lie below in time."""
        ends_s = self._now() + min(wait_s, DURABLE_MAX_S)
        while missing := self._core.secure(keys, self._now()):
            self._settle()
            left_s = ends_s - self._now()
            if left_s <= 0 or not await self._mover.wait_secured(missing, left_s):
                break
        return set(missing)

    async def answer(self, tenant: TenantId, keys: Sequence[BlockKey], wait_s: float) -> list[str]:
        """Per key "durable", "not_durable", or "miss", which is also what another tenant put."""
        own = [key for key in keys if self._core.tenant_of(key) == tenant]
        late, is_own = await self.wait(own, wait_s), set(own)
        return [
            "miss" if key not in is_own else "not_durable" if key in late else "durable"
            for key in keys
        ]

    async def after_put(self, items: Sequence[PutEndItem], results: Sequence[str]) -> list[str]:
        """Results of a put that is to be durable: what no tier takes in time is told so."""
        keys = [BlockKey(item.takes or item.key) for item in items]
        pairs = list(zip(keys, results, strict=True))
        late = await self.wait([key for key, said in pairs if said == "committed"])
        return [
            "not_durable" if said == "committed" and key in late else said for key, said in pairs
        ]
