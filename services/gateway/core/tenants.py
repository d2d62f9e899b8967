"""Who is asking: API keys to tenants, and the secret that keeps tenants' blocks apart."""

import hashlib
import hmac

from moonpool.messages.errors import CallerError
from moonpool.messages.ids import TenantId, check_id
from moonpool.settings import PREFIX, SettingsError
from services.gateway.core.errors import Unauthorized

PUBLIC = TenantId("public")
KEY_CHARS_MIN = 8
_OPEN_SECRET = b"moonpool: no secret configured"


class Tenants:
    """`key=tenant,key=tenant`; nothing configured lets everybody in as tenant `public`."""

    def __init__(self, spec: str) -> None:
        """Raises SettingsError, which names the variable and never a key."""
        self._tenants: list[tuple[bytes, TenantId]] = []  # (SHA-256 of the key, tenant)
        seen: set[bytes] = set()
        for at, pair in enumerate(filter(None, map(str.strip, spec.split(","))), 1):
            key, found, tenant = pair.rpartition("=")
            if not found or len(key) < KEY_CHARS_MIN:
                raise _bad(
                    f"pair {at} is not `key=tenant` with a key of {KEY_CHARS_MIN}+ characters"
                )
            try:
                check_id(tenant, "tenant")
            except CallerError as error:
                raise _bad(f"pair {at}: {error.message}") from error
            digest = _digest(key)
            if digest in seen:
                raise _bad(f"pair {at} repeats an earlier key")
            seen.add(digest)
            self._tenants.append((digest, TenantId(tenant)))

    @property
    def open(self) -> bool:
        return not self._tenants

    def identify(self, authorization: str | None) -> TenantId:
        """Tenant of an `Authorization: Bearer KEY` header. Raises Unauthorized."""
        if self.open:
            return PUBLIC
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("no API key given: send `Authorization: Bearer KEY`")
        digest = _digest(key.strip())
        found: TenantId | None = None
        for known, tenant in self._tenants:  # all of them: the time says nothing
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise Unauthorized("the API key given is not valid here")
        return found


def secret_bytes(secret: str) -> bytes:
    """The server secret behind isolation salts. Without one all gateways share a public constant:
    tenants' keys still differ, but could be computed by an outsider who sees the bus."""
    return secret.encode() if secret else _OPEN_SECRET


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _bad(what: str) -> SettingsError:
    return SettingsError(f"{PREFIX}API_KEYS: {what}")
