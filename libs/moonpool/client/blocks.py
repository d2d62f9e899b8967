"""KV blocks of one node at a time: batched, and layer by layer."""

import asyncio
import time
from collections.abc import Sequence

from moonpool.bus import Bus
from moonpool.client.base import Place
from moonpool.client.get_session import GetSession
from moonpool.client.node_calls import TIMEOUT_S, NodeCalls
from moonpool.client.put_session import PutSession
from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import Subjects, TenantId
from moonpool.messages.store import PutItem, StatsReply
from moonpool.transfer.base import Priority, TransferEngineProtocol

KEYS_MAX = 512  # per message: their checksums come back in one reply, which has a limit
PUT_TTL_S = 30.0
LEASE_S = 10.0
LOADING_WAIT_S = 1.0


class BlockStore:
    """Puts and gets on nodes by id; `get` works on instances too, for blocks of their own pool.

    Owns neither bus nor transfer engine. A message holds at most `KEYS_MAX` keys.
    """

    def __init__(
        self,
        bus: Bus,
        transfer: TransferEngineProtocol,
        subjects: Subjects,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.calls = NodeCalls(bus, subjects, timeout_s)
        self.wait_max_s = timeout_s * 0.6  # an answer must come before we stop listening for it
        self._transfer = transfer

    async def open_put(
        self,
        node: str,
        tenant: TenantId,
        items: Sequence[PutItem],
        *,
        ttl_s: float = PUT_TTL_S,
        run_blocks: int = 0,
        replicas: int = 1,
    ) -> PutSession:
        """Asks for room. Only where all items have one `chunk_bytes` can chunks be written by
        number. ValueError on none or too many."""
        _check_count(len(items))
        began_s = time.monotonic()
        reply = await self.calls.put_start(
            node, tenant, items, ttl_s, run_blocks=run_blocks, replicas=replicas
        )
        return PutSession(
            self.calls,
            self._transfer,
            node,
            list(items),
            reply.slots,
            reply.put,
            self._transfer.open(reply.grant) if reply.grant is not None else None,
            began_s + ttl_s,
        )

    async def put_blocks(
        self,
        node: str,
        tenant: TenantId,
        items: Sequence[tuple[BlockKey, Place]],
        size_bytes: int,
        chunk_bytes: int,
        checksums: Sequence[bytes] | None = None,
        *,
        priority: Priority = Priority.BACKGROUND,
    ) -> list[str]:
        """Whole blocks of one size. Checksums are computed, off the event loop, when not given.
        Per key: "committed", "exists", "busy", "no_space", "corrupt" or "expired"."""
        wants = [PutItem(key, size_bytes, chunk_bytes) for key, _ in items]
        async with await self.open_put(node, tenant, wants) as put:
            wanted = put.wanted
            sources = {i: items[i][1] for i in wanted}
            if checksums is not None:
                sums = {i: checksums[i] for i in wanted}
            else:
                sums = await asyncio.to_thread(_sums_of, sources, size_bytes, chunk_bytes)
            await put.write_chunks(0, size_bytes // chunk_bytes, sources, priority)
            return await put.finish(sums)

    async def open_get(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        *,
        lease_s: float = LEASE_S,
        wait_s: float = LOADING_WAIT_S,
        inline_bytes: int = 0,
        tail_bytes: int = 0,
        run_blocks: int = 0,
    ) -> GetSession:
        """A lease on those keys that are there; what the node has in a lower tier only is waited
        for up to `wait_s`, and then is no hit. `inline_bytes`, `tail_bytes`: what is to come with
        the answer, in `slots[i].data`. ValueError on none or too many keys."""
        _check_count(len(keys))
        began_s = time.monotonic()
        wait_s = min(wait_s, self.wait_max_s)
        reply = await self.calls.get_start(
            node,
            tenant,
            keys,
            lease_s,
            wait_s,
            inline_bytes=inline_bytes,
            tail_bytes=tail_bytes,
            run_blocks=run_blocks,
        )
        return GetSession(
            self.calls,
            self._transfer,
            node,
            tenant,
            list(keys),
            reply.slots,
            reply.lease,
            self._transfer.open(reply.grant) if reply.grant is not None else None,
            began_s + lease_s,
        )

    async def exist(self, node: str, tenant: TenantId, keys: Sequence[BlockKey]) -> list[bool]:
        """Who is there now; not counted as a use."""
        found: list[bool] = []
        for start in range(0, len(keys), KEYS_MAX):
            part = keys[start : start + KEYS_MAX]
            reply = await self.calls.get_start(node, tenant, part, 0.0)
            found += [slot.status != "miss" for slot in reply.slots]
        return found

    async def remove(self, node: str, tenant: TenantId, keys: Sequence[BlockKey]) -> list[str]:
        """Per key: "removed", "leased" (goes with its last reader), "pinned" or "miss"."""
        return await self.calls.remove(node, tenant, keys)

    async def pin(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        kind: str = "soft",
        *,
        ttl_s: float = 1800.0,
    ) -> list[str]:
        """kind: soft, hard or none. Per key: "pinned", "unpinned", "miss" or "over_quota"."""
        return await self.calls.pin(node, tenant, keys, kind, ttl_s)

    async def stats(self, node: str) -> StatsReply:
        return await self.calls.stats(node)


def _check_count(count: int) -> None:
    if not 1 <= count <= KEYS_MAX:
        raise ValueError(f"{count} keys in one session; 1 to {KEYS_MAX} fit")


def _sums_of(sources: dict[int, Place], size_bytes: int, chunk_bytes: int) -> dict[int, bytes]:
    return {
        index: chunk_checksums(region.view[offset : offset + size_bytes], chunk_bytes)
        for index, (region, offset) in sources.items()
    }
