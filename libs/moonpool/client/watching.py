"""Values that are to lie on several nodes: once they do, the nodes themselves see to it that they
go on to, also when one of them is gone and no client is there."""

import asyncio
from collections.abc import Mapping, Sequence

from moonpool.client.kit import Kit
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError

KEYS_MAX = 4096  # per message


async def watch_copies(kit: Kit, by_node: Mapping[str, Sequence[BlockKey]], replicas: int) -> None:
    """`by_node`: what each node holds, entries and stripes alike. After all of them were written:
    who looks sooner takes a copy that is on its way for one that is missing. Best effort: a node
    that does not hear of it leaves it to those that hold the other copies."""

    async def tell(node: str, keys: Sequence[BlockKey]) -> None:
        calls = kit.blocks.calls
        try:
            for start in range(0, len(keys), KEYS_MAX):
                some = keys[start : start + KEYS_MAX]
                await calls.pin(node, kit.tenant, some, "copies", 0.0, replicas)
        except MoonpoolError as error:
            kit.mesh.doubt(node, error)

    if replicas > 1:
        await asyncio.gather(*(tell(node, keys) for node, keys in by_node.items()))
