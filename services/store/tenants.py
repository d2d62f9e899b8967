"""Whose bytes lie in a tier, and how much each tenant may have there. Pure.

Quotas are the same on every node and in force at once. Only tenants that have one keep an order of
their own blocks, from which theirs can be evicted.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.quota import TenantQuota

LOOKED_MAX = 4096  # own blocks looked at for one that may go

NO_QUOTA = TenantQuota()


class Quotas:
    """What operators have set. One object per node, read by every tier."""

    def __init__(self) -> None:
        self._by_tenant: dict[TenantId, TenantQuota] = {}

    def set(self, tenant: TenantId, quota: TenantQuota | None) -> None:
        """None: no limits any more."""
        if quota is None:
            self._by_tenant.pop(tenant, None)
        else:
            self._by_tenant[tenant] = quota

    def get(self, tenant: TenantId) -> TenantQuota:
        return self._by_tenant.get(tenant, NO_QUOTA)

    def evicts(self, tenant: TenantId) -> bool:
        return self.get(tenant).over == "evict"


class TenantLedger:
    """Every allocated byte of one tier belongs to the tenant who put it."""

    def __init__(self, tier: str) -> None:
        self.quotas = Quotas()
        self.refused: Counter[TenantId] = Counter()  # blocks
        self.evicted: Counter[TenantId] = Counter()  # blocks
        self._tier = tier
        self._bytes: dict[TenantId, int] = {}  # values > 0
        self._own: dict[TenantId, OrderedDict[BlockKey, None]] = {}  # least recently used first

    # --- bytes ---

    def add(self, tenant: TenantId, size_bytes: int) -> None:
        self._bytes[tenant] = self._bytes.get(tenant, 0) + size_bytes

    def subtract(self, tenant: TenantId, size_bytes: int) -> None:
        left = self._bytes[tenant] - size_bytes
        assert left >= 0, f"tenant {tenant} would hold {left} bytes"
        if left:
            self._bytes[tenant] = left
        else:
            del self._bytes[tenant]

    def by_tenant(self) -> Mapping[TenantId, int]:
        return self._bytes

    def excess_bytes(self, tenant: TenantId, more_bytes: int = 0) -> int:
        """How far over its quota it would be with so much more; 0 when it fits."""
        limit = self.quotas.get(tenant).of_tier(self._tier)
        if limit is None:
            return 0
        return max(0, self._bytes.get(tenant, 0) + more_bytes - limit)

    # --- whose turn it is, of one tenant's ---

    def follow(self, tenant: TenantId, keys: Iterable[BlockKey]) -> None:
        """Keeps an order of its blocks from now on; `keys` are those that are here."""
        if tenant not in self._own:
            self._own[tenant] = OrderedDict.fromkeys(keys)

    def leave(self, tenant: TenantId) -> None:
        self._own.pop(tenant, None)

    def came(self, tenant: TenantId, key: BlockKey) -> None:
        own = self._own.get(tenant)
        if own is not None:
            own[key] = None

    def went(self, tenant: TenantId, key: BlockKey) -> None:
        own = self._own.get(tenant)
        if own is not None:
            own.pop(key, None)

    def touched(self, keys: Sequence[BlockKey]) -> None:
        """A use of a run, head first: its tail goes before its head."""
        for own in self._own.values():
            for key in reversed(keys):
                if key in own:
                    own.move_to_end(key)

    def oldest(self, tenant: TenantId) -> list[BlockKey]:
        """Its blocks, least recently used first; not all of very many. None of a tenant that is not
        followed."""
        own = self._own.get(tenant, ())
        return [key for key, _ in zip(own, range(LOOKED_MAX), strict=False)]

    @property
    def followed(self) -> list[TenantId]:
        return list(self._own)

    def check(self, live: Mapping[BlockKey, TenantId]) -> None:
        """Asserts that orders hold exactly what is here. `live`: key -> tenant."""
        for tenant, own in self._own.items():
            assert set(own) == {key for key, owner in live.items() if owner == tenant}
