"""Sees to it that blocks which are to lie on several nodes do so, also after a node is gone."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import NoReturn

from moonpool.client.placement import rank_nodes
from moonpool.clock import Clock
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.runtime.members_core import Change, ChangeKind
from services.store.copies import judge
from services.store.core import StoreCore
from services.store.objects import State
from services.store.peers import Peers

LOOK_S = 0.25
RETRY_S = 2.0  # for what could not be done
BATCH_MAX = 256
_LOSSES = (ChangeKind.SUSPECT, ChangeKind.LEFT, ChangeKind.FORGOTTEN)


class Guard:
    """One per node."""

    def __init__(self, core: StoreCore, peers: Peers, clock: Clock) -> None:
        self._core = core
        self._peers = peers
        self._clock = clock
        self._again: dict[BlockKey, float] = {}  # when to look once more, in order of time

    def changed(self, change: Change) -> None:
        """A member came or went. A leaving one's blocks are looked after at once; of a silent one
        first the proof is asked for that it is gone."""
        is_leaving = change.kind is ChangeKind.STATE and change.member.state == "draining"
        is_loss = change.kind in _LOSSES or is_leaving or change.kind is ChangeKind.JOINED
        if change.member.role == "store" and change.member.id != self._peers.me and is_loss:
            self._core.copies.all_due()

    async def run(self) -> NoReturn:
        """Until cancelled."""
        copies = self._core.copies
        while True:
            await self._clock.sleep(LOOK_S)
            copies.again(self._take_due())
            by_tenant: dict[TenantId, list[BlockKey]] = defaultdict(list)
            for key in copies.take_due(BATCH_MAX):
                by_tenant[self._core.tenant_of(key)].append(key)
            for tenant, keys in by_tenant.items():
                await self._look_after(tenant, keys)

    async def _look_after(self, tenant: TenantId, keys: Sequence[BlockKey]) -> None:
        copies, me = self._core.copies, self._peers.me
        found = await self._peers.holders(tenant, keys)
        nodes = {me, *found.silent, *found.taking}
        to_send: dict[tuple[str, int], list[BlockKey]] = defaultdict(list)
        undone: list[BlockKey] = []
        for key in keys:
            wanted = copies.wanted(key)
            having = {me, *(found.by_key[key] & found.taking)}
            verdict = judge(me, rank_nodes(key, nodes), having, found.silent, wanted)
            if verdict.is_extra:
                self._core.residents.mark_extra(key)
            if verdict.targets and not self._is_in_dram(key):
                self._core.promote([key], self._clock.now())
                undone.append(key)
                continue
            for target in verdict.targets:
                to_send[target, wanted].append(key)
            if verdict.is_open:
                undone.append(key)
        for (target, wanted), some in to_send.items():
            undone += await self._send(target, tenant, some, wanted)
        at_s = self._clock.now() + RETRY_S
        for key in undone:
            self._again.pop(key, None)  # one entry for a key, in its new place
            self._again[key] = at_s

    def _take_due(self) -> list[BlockKey]:
        now_s = self._clock.now()
        due = list(takewhile(lambda key: self._again[key] <= now_s, self._again))
        for key in due:
            del self._again[key]
        return due

    async def _send(
        self, target: str, tenant: TenantId, keys: list[BlockKey], wanted: int
    ) -> list[BlockKey]:
        """What is not there yet."""
        outcome = await self._peers.send(target, tenant, keys, wanted)
        there = {key for key, said in outcome.items() if said in ("committed", "exists")}
        self._core.copies.copied += sum(said == "committed" for said in outcome.values())
        self._core.copies.failed += len(outcome) - len(there)
        await asyncio.sleep(0)
        return [key for key in keys if key not in there]

    def _is_in_dram(self, key: BlockKey) -> bool:
        obj = self._core.residents.objects.get(key)
        return obj is not None and obj.state is State.LIVE
