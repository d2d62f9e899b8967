"""The nodes of a mesh as a client sees them: who takes values, who may have them, where to put."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client.blocks import BlockStore
from moonpool.client.errors import NoNodes
from moonpool.client.placement import NodeView, Strategy, first_node, rank_nodes
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError
from moonpool.messages.store import StatsReply
from moonpool.runtime import Members

A = TypeVar("A")

RATIOS_FRESH_S = 1.0
UNHEARD_S = 3.0  # as the registry takes to find a node silent


class Mesh:
    """One client's view. `fixed` nodes: only those, and of them whom the registry suspects last."""

    def __init__(
        self,
        blocks: BlockStore,
        members: Members,
        host_id: str,
        strategy: Strategy,
        rng: Random,
        fixed: Sequence[str] = (),
    ) -> None:
        self.blocks = blocks
        self.fixed = list(fixed)
        self._members = members
        self._host_id = host_id
        self._strategy = strategy
        self._rng = rng
        self._ratios: dict[str, tuple[float, float]] = {}  # node -> free share of (dram, nvme)
        self._ratios_s = -RATIOS_FRESH_S
        self._silent: set[str] = set()  # of those that are suspect
        self._unheard_until_s: dict[str, float] = {}  # fixed ones that the registry never heard

    def writable(self) -> list[str]:
        """Nodes that take new values now. Raises NoNodes."""
        nodes = self.known()
        if not nodes:
            raise NoNodes("no store node is known right now")
        return nodes

    def known(self) -> list[str]:
        """As `writable`, or none."""
        return self._awake() or [member.id for member in self._members.usable("store")]

    def readable(self) -> list[str]:
        """Nodes that may hold values, those that are leaving too. Raises NoNodes."""
        if self.fixed:
            return self._awake()
        members = [member for member in self._members.of("store") if not member.is_suspect]
        if not members:
            raise NoNodes("no store node is known right now")
        return [member.id for member in members]

    def everyone(self) -> list[str]:
        """As `readable`, and those that are not heard now: they may come back, with what they
        have."""
        known = self.fixed or [member.id for member in self._members.of("store")]
        return list(known)

    def _awake(self) -> list[str]:
        """Of the fixed nodes those that are not suspect; all of them when every one is."""
        return [node for node in self.fixed if self._is_heard(node)] or list(self.fixed)

    def _is_heard(self, node: str) -> bool:
        member = self._members.get(node)
        if member is None:
            return time.monotonic() >= self._unheard_until_s.get(node, 0.0)
        return not member.is_suspect

    def is_silent(self, node: str) -> bool:
        """Whether it did not answer, and was not heard since: it may be asked in vain, and have
        what nobody else has."""
        return node in self._silent and not self._is_heard(node)

    def absent(self) -> list[str]:
        """Nodes that may hold values, and come back with them, but are not asked now."""
        if self.fixed:
            return [node for node in self.fixed if not self._is_heard(node)]
        return self._members.absent("store")

    def is_one(self) -> bool:
        """Whether there is just one node that may be read."""
        return len(self.readable()) == 1

    def homes(self, key: BlockKey) -> list[str]:
        """Nodes that take values, the name's home first."""
        return rank_nodes(key, self.writable())

    def home_of(self, keys: Sequence[BlockKey]) -> list[str]:
        """The home of each. Raises NoNodes."""
        nodes = self.writable()
        return [first_node(key, nodes) for key in keys]

    def local(self) -> list[str]:
        """Nodes on our own host."""
        return [m.id for m in self._members.of("store") if m.registration.host_id == self._host_id]

    def doubt(self, node: str, outcome: object) -> None:
        """A node that nobody serves, or that does not answer, is asked nothing until it is heard
        again."""
        if isinstance(outcome, NoResponder | RequestTimeout):
            self._members.doubt(node)
            if isinstance(outcome, RequestTimeout):
                self._silent.add(node)
            else:
                self._silent.discard(node)
            if node in self.fixed and self._members.get(node) is None:
                self._unheard_until_s[node] = time.monotonic() + UNHEARD_S

    async def order(self, key: BlockKey) -> list[str]:
        """Where the strategy wants the bytes of `key`, best node first."""
        nodes = self.writable()
        if len(nodes) == 1:
            return nodes
        if self._strategy.needs_ratios:
            await self._look(nodes)
        now_s, local = time.time(), set(self.local())
        views = []
        for id in nodes:
            member = self._members.get(id)
            free, ssd = self._ratios.get(id, (1.0, 0.0))
            age_s = now_s - member.registration.started_unix_s if member else 3600.0
            views.append(NodeView(id, id in local, max(0.0, age_s), free, ssd))
        return [view.id for view in self._strategy.order(key, views, self._rng)]

    async def ask_all(
        self, ask: Callable[[str], Awaitable[A]], nodes: Sequence[str] | None = None
    ) -> dict[str, A]:
        """Answers by node; a node that is gone has none. Raises what any other node raised."""
        asked = list(self.readable() if nodes is None else nodes)
        answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        out: dict[str, A] = {}
        for node, answer in zip(asked, answers, strict=True):
            self.doubt(node, answer)
            if not isinstance(answer, BaseException):
                out[node] = answer
            elif not isinstance(answer, NoResponder):
                raise answer
        return out

    async def capacity_bytes(self) -> int:
        """DRAM of all nodes that take values."""
        stats = await self.ask_all(self.blocks.stats, self.writable())
        return sum(_tier(reply, "dram")[1] for reply in stats.values())

    async def _look(self, nodes: Sequence[str]) -> None:
        """Asks how full nodes are, if nobody did within a second."""
        if time.monotonic() - self._ratios_s < RATIOS_FRESH_S:
            return
        self._ratios_s = time.monotonic()
        try:
            stats = await self.ask_all(self.blocks.stats, nodes)
        except MoonpoolError:
            return  # the last known ratios do
        for node, reply in stats.items():
            self._ratios[node] = (_free(reply, "dram"), _free(reply, "nvme"))


def _tier(reply: StatsReply, name: str) -> tuple[int, int]:
    """(bytes used, bytes in all)."""
    found = [(tier.bytes_used, tier.bytes_total) for tier in reply.tiers if tier.tier == name]
    return found[0] if found else (0, 0)


def _free(reply: StatsReply, name: str) -> float:
    used, total = _tier(reply, name)
    return 1.0 - used / total if total else 0.0
