"""Peers read blocks of our device pool like those of any store node (`get_start`, `get_end`)."""

import asyncio
import itertools
from dataclasses import dataclass

from moonpool.bus import Endpoint
from moonpool.instance.core import InstanceCore
from moonpool.instance.links import Links
from moonpool.kv import BlockKey, unpack_keys
from moonpool.messages.codec import decode, encode
from moonpool.messages.segments import RegionGrant
from moonpool.messages.store import (
    GetEndReply,
    GetEndRequest,
    GetSlot,
    GetStartReply,
    GetStartRequest,
)

LEASE_MAX_S = 30.0
LEASES_MAX = 256
_MISS = GetSlot("miss")
_SEEN = GetSlot("hit", tier="hbm")


@dataclass(frozen=True, slots=True)
class Lease:
    blocks: list[int]
    grant: RegionGrant
    expires_s: float


class PoolReads:
    """Leases over blocks of the pool: leased blocks are referenced, so they stay as they are."""

    def __init__(self, links: Links, core: InstanceCore) -> None:
        self._links = links
        self._core = core
        self._leases: dict[int, Lease] = {}
        self._ids = itertools.count(1)

    def endpoints(self) -> list[Endpoint]:
        subjects, id = self._links.ctx.subjects, self._links.ctx.id
        return [
            Endpoint("pool-get-start", subjects.store(id, "get_start"), self._start),
            Endpoint("pool-get-end", subjects.store(id, "get_end"), self._end),
        ]

    @property
    def leases(self) -> int:
        return len(self._leases)

    def expire(self) -> None:
        """Takes back leases that ran out: their readers learn it at `get_end`."""
        now_s = self._links.ctx.clock.now()
        for id, lease in list(self._leases.items()):
            if now_s >= lease.expires_s:
                self._drop(id)

    async def _start(self, payload: bytes) -> bytes:
        request = decode(payload, GetStartRequest)
        keys = unpack_keys(request.keys)
        if request.lease_s <= 0:  # only looking
            held_by = [self._core.pool.holds(key) for key in keys]
            return encode(GetStartReply(0, [_SEEN if held else _MISS for held in held_by]))
        if len(self._leases) >= LEASES_MAX:
            return encode(GetStartReply(0, [_MISS] * len(keys)))
        now_s = self._links.ctx.clock.now()
        found = [(key, self._core.pool.find(key)) for key in keys]
        held = [(key, block) for key, block in found if block is not None]
        if not held:
            return encode(GetStartReply(0, [_MISS] * len(keys)))
        blocks = [block for _, block in held]
        self._core.pool.acquire(blocks, now_s)
        lease_s = min(max(request.lease_s, 0.1), LEASE_MAX_S)
        grant = self._links.memory.region.grant("r", ttl_s=lease_s)
        id = next(self._ids)
        self._leases[id] = Lease(blocks, grant, now_s + lease_s)
        sums = await asyncio.get_running_loop().run_in_executor(
            self._links.helpers, self._seal, held
        )
        layout = self._links.memory.layout
        slots = [
            _MISS
            if block is None
            else GetSlot(
                "hit",
                block * layout.block_bytes,
                layout.block_bytes,
                layout.layer_bytes,
                id,
                sums[key],
                "hbm",
            )
            for key, block in found
        ]
        return encode(GetStartReply(id, slots, grant))

    async def _end(self, payload: bytes) -> bytes:
        request = decode(payload, GetEndRequest)
        valid = request.lease in self._leases
        if valid:
            self._drop(request.lease)
        return encode(GetEndReply(valid))

    def _seal(self, held: list[tuple[BlockKey, int]]) -> dict[BlockKey, bytes]:
        memory, sums = self._links.memory, {}
        layers = range(memory.layout.layers)
        for key, block in held:
            memory.bring_out([block], layers)
            known = self._links.sums.get(key)
            sums[key] = known if known is not None else memory.checksums(block, layers)
        return sums

    def _drop(self, id: int) -> None:
        lease = self._leases.pop(id)
        self._links.memory.region.revoke(lease.grant)
        self._core.pool.release(lease.blocks, self._links.ctx.clock.now())
