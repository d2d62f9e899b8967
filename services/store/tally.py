"""Tenants over all tiers of a node: quotas in force, and what each holds. Pure."""

from moonpool.messages.ids import TenantId
from moonpool.messages.quota import TenantQuota
from moonpool.messages.store import TenantStats
from services.store.ladder import Ladder
from services.store.objects import State
from services.store.pins import Pins
from services.store.residents import Residents
from services.store.tenants import Quotas

TENANTS_MAX = 1000  # in one reply; those that hold most


class TenantTally:
    """The ledgers of all tiers, under one set of quotas."""

    def __init__(self, residents: Residents, ladder: Ladder, quotas: Quotas) -> None:
        self._residents = residents
        self._quotas = quotas
        self._ledgers = {residents.tier.name: residents.tenants}
        self._ledgers |= {shelf.name: shelf.tenants for shelf in ladder.shelves}
        for ledger in self._ledgers.values():
            ledger.quotas = quotas

    def set_quota(self, tenant: TenantId, quota: TenantQuota | None) -> None:
        """In force at once; None: no limits any more. Looks at everything in dram."""
        self._quotas.set(tenant, quota)
        live = (o for o in self._residents.objects.values() if o.state is State.LIVE)
        if quota is None:
            self._residents.tenants.leave(tenant)
        else:
            here = [obj.key for obj in live if obj.tenant == tenant]
            self._residents.tenants.follow(tenant, here)

    def trim(self) -> None:
        """Whoever is above a quota that was lowered gives back, if that is its policy."""
        for tenant in self._residents.tenants.followed:
            if self._quotas.evicts(tenant):
                self._residents.fits_quota(tenant, 0, evict=True)

    def stats(self, pins: Pins) -> dict[str, TenantStats]:
        """By tenant."""
        total: dict[TenantId, int] = {}
        for ledger in self._ledgers.values():
            for tenant, size_bytes in ledger.by_tenant().items():
                total[tenant] = total.get(tenant, 0) + size_bytes
            for tenant in (*ledger.refused, *ledger.evicted):
                total.setdefault(tenant, 0)
        largest = sorted(total, key=lambda tenant: total[tenant], reverse=True)[:TENANTS_MAX]
        ledgers = self._ledgers.values()
        return {
            tenant: TenantStats(
                {name: each.by_tenant().get(tenant, 0) for name, each in self._ledgers.items()},
                pins.bytes_by_tenant[tenant],
                sum(each.refused[tenant] for each in ledgers),
                sum(each.evicted[tenant] for each in ledgers),
            )
            for tenant in largest
        }
