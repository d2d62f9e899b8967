"""Takes away names that others have changed in our absence, pinned or not, from every tier."""

import asyncio
from collections.abc import Sequence

from moonpool.kv import BlockKey
from moonpool.kv.named import MARK
from moonpool.messages.ids import TenantId
from services.store.node import StoreNode
from services.store.objects import State

STEP = 1000  # between two looks at the loop


def drop_named(node: StoreNode, tenant: TenantId, keys: Sequence[BlockKey]) -> int:
    """How many were there. A pin stays with the key: whoever put it anew may want it."""
    core, dropped = node.core, 0
    for key in keys:
        (result,) = core.remove(tenant, [key], node.now())
        if result == "pinned":
            obj = core.residents.objects.get(key)
            if obj is not None and obj.state is State.LIVE and obj.tenant == tenant:
                core.residents.drop(obj)
            core.ladder.remove(tenant, key)
        dropped += result != "miss"
    node.settle()
    return dropped


async def drop_names(node: StoreNode, tenant: TenantId, since_s: float, *, everything: bool) -> int:
    """All names of a tenant that are older, and with `everything` all else too."""
    notes, dropped = node.core.residents.notes, 0
    keys = [
        key
        for key in node.listing.keys_of(tenant)
        if (everything or key.startswith(MARK)) and not notes.is_newer(key, since_s)
    ]
    for start in range(0, len(keys), STEP):
        dropped += drop_named(node, tenant, keys[start : start + STEP])
        await asyncio.sleep(0)
    return dropped


async def drop_prefix(node: StoreNode, tenant: TenantId, prefix: str, since_s: float) -> int:
    """Names that begin so. Those that lie below since before the start are read first."""
    await node.listing.learn_all()
    notes, dropped, after, more = node.core.residents.notes, 0, "", True
    while more:
        keys, after, more = node.listing.keys_with(tenant, prefix, after, STEP)
        old = [key for key in keys if not notes.is_newer(key, since_s)]
        dropped += drop_named(node, tenant, old)
        await asyncio.sleep(0)
    return dropped
