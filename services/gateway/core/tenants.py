"""Who is asking: API keys to tenants, and the secret that keeps tenants' blocks apart."""

from moonpool.messages.ids import TenantId
from moonpool.runtime.api_keys import PUBLIC, ApiKeys
from moonpool.runtime.errors import InvalidKey
from services.gateway.core.errors import Unauthorized

__all__ = ["PUBLIC", "Tenants", "secret_bytes"]

_OPEN_SECRET = b"moonpool: no secret configured"


class Tenants:
    """`key=tenant,key=tenant`; nothing configured lets everybody in as tenant `public`."""

    def __init__(self, spec: str) -> None:
        """Raises SettingsError, which names the variable and never a key."""
        self._keys = ApiKeys(spec, "API_KEYS")

    @property
    def open(self) -> bool:
        return self._keys.open

    def identify(self, authorization: str | None) -> TenantId:
        """Tenant of an `Authorization: Bearer KEY` header. Raises Unauthorized."""
        try:
            return self._keys.identify(authorization)
        except InvalidKey as error:
            raise Unauthorized(error.message) from None


def secret_bytes(secret: str) -> bytes:
    """The server secret behind isolation salts. Without one all gateways share a public constant:
    tenants' keys still differ, but could be computed by an outsider who sees the bus."""
    return secret.encode() if secret else _OPEN_SECRET
