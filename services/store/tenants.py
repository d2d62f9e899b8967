"""Bytes per tenant, as the tier counts them: what quotas and bills start from."""

from collections.abc import Mapping

from moonpool.messages.ids import TenantId


class TenantBytes:
    """Every allocated byte belongs to the tenant who put it."""

    def __init__(self) -> None:
        self._bytes: dict[TenantId, int] = {}  # values > 0

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
