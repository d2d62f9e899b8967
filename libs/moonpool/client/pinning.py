"""Pinning a value is all or nothing: what could not be pinned whole is left as it was."""

import asyncio
from collections import defaultdict
from collections.abc import Container, Sequence

from moonpool.client.base import SOFT_PIN_S
from moonpool.client.kit import Kit
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError


class Pinning:
    """One call's pins of one kind. `ask` for any node's keys; at last `take_back` for those whose
    value was not pinned as a whole."""

    def __init__(self, kit: Kit, kind: str, ttl_s: float) -> None:
        self._kit = kit
        self._kind = kind
        self._ttl_s = ttl_s
        # node -> key -> how it was pinned before
        self._made: dict[str, dict[BlockKey, str]] = defaultdict(dict)

    async def ask(self, node: str, keys: Sequence[BlockKey]) -> list[str]:
        """Per key what the node says. Raises what its messages raise."""
        calls, tenant = self._kit.blocks.calls, self._kit.tenant
        reply = await calls.pin_told(node, tenant, keys, self._kind, self._ttl_s)
        before = reply.before or [""] * len(keys)
        for key, result, was in zip(keys, reply.results, before, strict=True):
            if result == "pinned" and was not in ("hard", self._kind):
                self._made[node].setdefault(key, was)
        return reply.results

    async def take_back(self, keys: Container[BlockKey]) -> None:
        """Ends the pins of those keys that were made here. Best effort: a node that cannot be
        reached keeps them."""
        undo = {n: [k for k in made if k in keys] for n, made in self._made.items()}
        await asyncio.gather(*(self._undo(node, some) for node, some in undo.items() if some))

    async def _undo(self, node: str, keys: list[BlockKey]) -> None:
        calls, tenant, made = self._kit.blocks.calls, self._kit.tenant, self._made[node]
        soft = [key for key in keys if made[key] == "soft"]
        try:
            await calls.pin(node, tenant, keys, "none", 0.0)
            if soft:
                await calls.pin(node, tenant, soft, "soft", SOFT_PIN_S)
        except MoonpoolError as error:
            self._kit.mesh.doubt(node, error)
