"""A node that drains gives away what is worth keeping, best first, as far as time goes."""

import asyncio
from collections import defaultdict

from moonpool.client.placement import rank_nodes
from moonpool.clock import Clock
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.core import StoreCore
from services.store.node import StoreNode
from services.store.objects import State
from services.store.peers import Peers

BATCH_MAX = 128
TARGETS_MAX = 2  # nodes tried for one block
LOADING_MAX_S = 2.0
SELDOM, ON_DISK = 4, 5  # ranks
STEP = 2000  # objects looked at before others have their turn
DISK_MAX = 100_000  # blocks on the disk that are thought of, beside those pinned hard


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
        left = await worth_moving(self._core)
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
        """What lies on the disk comes up first, as much at a time as there is room for."""
        left = dict.fromkeys(keys)
        while left:
            here = [key for key in left if _is_live(self._core, key)]
            if not here:
                self._core.promote(list(left), self._clock.now())
                self._node.settle()
                is_coming = await self._node.mover.wait_loaded(list(left), LOADING_MAX_S)
                here = [key for key in left if _is_live(self._core, key)]
                if not is_coming or not here:
                    break
            await self._give(here)
            for key in here:
                del left[key]
        self._core.counters["drain_failed"] += len(left)

    async def _give(self, keys: list[BlockKey]) -> None:
        """To the nodes that will be asked for them first; to the next ones if those take none."""
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


async def worth_moving(core: StoreCore) -> list[BlockKey]:
    """Pinned hard, wanted on several nodes, pinned soft, used more than once; then some of what
    lies on this machine's disk. What is in a bucket stays there for everybody. Lets others in
    between."""
    order: dict[BlockKey, int] = {}
    for number, key in enumerate(reversed(list(core.residents.objects))):  # newest first
        if number % STEP == STEP - 1:
            await asyncio.sleep(0)
        if _is_live(core, key) and core.ladder.below_of(key) != "oss":
            rank = _rank(core, key)
            if rank < SELDOM or core.ladder.is_worth_keeping(key):
                order[key] = rank
    on_disk = (shelf for shelf in core.ladder.shelves if shelf.name == "nvme")
    for key in (key for shelf in on_disk for key in shelf.some_keys(DISK_MAX)):
        rank = _rank(core, key)
        order.setdefault(key, rank if rank < SELDOM else ON_DISK)
    for key in core.pins.hard_keys():
        if core.ladder.below_of(key) == "nvme":
            order[key] = 0
    return sorted(order, key=order.__getitem__)


def _rank(core: StoreCore, key: BlockKey) -> int:
    """0 goes first; SELDOM: nobody asked for it to be kept."""
    pin = core.pins.kind_of(key)
    if pin == "hard":
        return 0
    if core.copies.wanted(key) > 1:
        return 1
    return 2 if pin == "soft" else SELDOM


def _is_live(core: StoreCore, key: BlockKey) -> bool:
    obj = core.residents.objects.get(key)
    return obj is not None and obj.state is State.LIVE
