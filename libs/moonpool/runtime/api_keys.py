"""Who is asking over HTTP: API keys to tenants."""

import hashlib
import hmac

from moonpool.messages.errors import CallerError
from moonpool.messages.ids import TenantId, check_id
from moonpool.runtime.errors import InvalidKey
from moonpool.settings import PREFIX, SettingsError

PUBLIC = TenantId("public")
KEY_CHARS_MIN = 8


class ApiKeys:
    """`key=tenant,key=tenant`; nothing configured lets everybody in as tenant `public`."""

    def __init__(self, spec: str, variable: str) -> None:
        """`variable`: where `spec` was set, without the prefix. Raises SettingsError, which names
        it and never a key."""
        self._tenants: list[tuple[bytes, TenantId]] = []  # (SHA-256 of the key, tenant)
        where, seen = f"{PREFIX}{variable}", set[bytes]()
        for at, pair in enumerate(filter(None, map(str.strip, spec.split(","))), 1):
            key, found, tenant = pair.rpartition("=")
            if not found or len(key) < KEY_CHARS_MIN:
                raise SettingsError(
                    f"{where}: pair {at} is not `key=tenant` with a key of {KEY_CHARS_MIN}+ "
                    "characters"
                )
            try:
                check_id(tenant, "tenant")
            except CallerError as error:
                raise SettingsError(f"{where}: pair {at}: {error.message}") from error
            digest = _digest(key)
            if digest in seen:
                raise SettingsError(f"{where}: pair {at} repeats an earlier key")
            seen.add(digest)
            self._tenants.append((digest, TenantId(tenant)))

    @property
    def open(self) -> bool:
        return not self._tenants

    def identify(self, authorization: str | None) -> TenantId:
        """Tenant of an `Authorization: Bearer KEY` header. Raises InvalidKey."""
        if self.open:
            return PUBLIC
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise InvalidKey("no API key given: send `Authorization: Bearer KEY`")
        digest = _digest(key.strip())
        found: TenantId | None = None
        for known, tenant in self._tenants:  # all of them: the time says nothing
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise InvalidKey("the API key given is not valid here")
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
