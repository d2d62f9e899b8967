"""Objects' names in the bucket: they say what a listing must tell, and only that is believed of
them; what an object holds is said by its own header.

    <mesh>/<tenant>/<key in hex>-<size in bytes>-<chunk in bytes>
"""

import re

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.tiers.record import Facts

_NAME = re.compile(r"([A-Za-z0-9_-]{1,64})/([0-9a-f]{32})-([1-9][0-9]*)-([1-9][0-9]*)")


def object_name(mesh: str, facts: Facts) -> str:
    """One tenant's objects share a prefix."""
    name = f"{facts.key.hex()}-{facts.size_bytes}-{facts.chunk_bytes}"
    return f"{mesh}/{facts.tenant}/{name}"


def parse_name(mesh: str, name: str) -> Facts | None:
    """None for what is none of ours. Nobody knows its serial: 0."""
    found = _NAME.fullmatch(name.removeprefix(f"{mesh}/"))
    if found is None or not name.startswith(f"{mesh}/"):
        return None
    tenant, key, size, chunk = found.groups()
    if int(size) % int(chunk):
        return None
    return Facts(BlockKey(bytes.fromhex(key)), TenantId(tenant), int(size), int(chunk), 0)
