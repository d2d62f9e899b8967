"""A node that drains gives away what is worth keeping, best first, as far as time goes."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from moonpool.client.placement import rank_nodes
from moonpool.clock import Clock
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.core import StoreCore
from services.store.node import StoreNode
from services.store.objects import Seat, State
from services.store.peers import Peers

BATCH_MAX = 128
TARGETS_MAX = 2  # nodes tried for one block
LOADING_MAX_S = 2.0


class Farewell:
    """`run` once, after the node has stopped taking puts."""

    def __init__(self, node: StoreNode, peers: Peers, clock: Clock) -> None:
        self._node = node
        self._core = node.core
        self._peers = peers
        self._clock = clock

    async def run(self, within_s: float) -> None:
        """Returns when everything worth it has gone to others, or is there already, or the time is
        over, or nobody takes anything. `drain_moved` and `drain_left` in the counters say it."""
        ends_s = self._clock.now() + within_s
        left = worth_moving(self._core)
        self._core.counters["drain_left"] = len(left)
        self._core.counters["drain_moved"] = 0
        while left and self._clock.now() < ends_s and self._peers.taking():
            batch, left = left[:BATCH_MAX], left[BATCH_MAX:]
            try:
                async with asyncio.timeout(max(0.01, ends_s - self._clock.now())):
                    await self._move(batch)
            except TimeoutError:
                break
            self._core.counters["drain_left"] = len(left)

    async def _move(self, keys: list[BlockKey]) -> None:
        below = [key for key in keys if not _is_live(self._core, key)]
        if below:
            self._core.promote(below, self._clock.now())
            self._node.settle()
            await self._node.mover.wait_loaded(below, LOADING_MAX_S)
        undone = set(keys)
        for turn in range(TARGETS_MAX):
            by_target: dict[tuple[str, TenantId, int], list[BlockKey]] = defaultdict(list)
            nodes = self._peers.taking()
            for key in keys:
                if key in undone and len(nodes) > turn:
                    target = rank_nodes(key, nodes)[turn]
                    wanted = self._core.copies.wanted(key)
                    by_target[target, self._core.tenant_of(key), wanted].append(key)
            for (target, tenant, wanted), some in by_target.items():
                outcome = await self._peers.send(target, tenant, some, wanted)
                moved = {k for k, said in outcome.items() if said in ("committed", "exists")}
                self._core.counters["drain_moved"] += len(moved)
                undone -= moved
            if not undone:
                return
        self._core.counters["drain_failed"] += len(undone)


def worth_moving(core: StoreCore) -> list[BlockKey]:
    """Pinned hard, wanted on several nodes, pinned soft, used more than once; then what lies on
    this machine's disk. What is in a bucket stays there for everybody."""
    order: dict[BlockKey, int] = {}
    for key, obj in core.residents.objects.items():
        if obj.state is State.LIVE and core.ladder.below_of(key) != "oss":
            rank = _rank(core, key, is_soft=obj.seat is Seat.SOFT)
            if rank < 4 or core.ladder.is_worth_keeping(key):
                order[key] = rank
    for shelf in core.ladder.shelves:
        if shelf.name == "nvme":
            order |= _ranks_of(core, (k for k in shelf.readable_keys() if k not in order))
    newest_first = reversed(list(order))
    return sorted(newest_first, key=order.__getitem__)


def _ranks_of(core: StoreCore, keys: Iterable[BlockKey]) -> dict[BlockKey, int]:
    return {key: min(5, _rank(core, key) + (_rank(core, key) == 4)) for key in keys}


def _rank(core: StoreCore, key: BlockKey, *, is_soft: bool = False) -> int:
    """0 goes first; 4: nobody asked for it to be kept."""
    pin = core.pins.kind_of(key)
    if pin == "hard":
        return 0
    if core.copies.wanted(key) > 1:
        return 1
    return 2 if pin == "soft" or is_soft else 4


def _is_live(core: StoreCore, key: BlockKey) -> bool:
    obj = core.residents.objects.get(key)
    return obj is not None and obj.state is State.LIVE
