"""Any bytes by name, in the pool of a mesh: what outside programs use.

    async with StoreClient.connect("nats://127.0.0.1:4222") as store:
        await store.put("weights/7", data)
        data = await store.get("weights/7")

A value lives on one node, chosen from its name; it is a cache: nodes evict what is not pinned.
"""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Self, TypeVar

from moonpool.bus import Bus, NatsBus, NoResponder
from moonpool.client.blocks import KEYS_MAX, BlockStore
from moonpool.client.errors import NoNodes
from moonpool.client.fetching import GetResult, fetch_from
from moonpool.client.node_calls import TIMEOUT_S
from moonpool.client.placement import rank_nodes
from moonpool.client.sending import outcome_error, send_to
from moonpool.client.staging import Staging
from moonpool.client.values import value_key
from moonpool.clock import RealClock
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError, Subjects, TenantId
from moonpool.messages.store import StatsReply
from moonpool.runtime import Members
from moonpool.runtime.identity import host_id as host_id_of
from moonpool.transfer import TlsFiles, TransferEngine
from moonpool.transfer.base import TransferEngineProtocol

A = TypeVar("A")
N = TypeVar("N", str, bytes)  # names of one call are all of one kind
Value = bytes | bytearray | memoryview

BATCH_BYTES = 64 << 20  # of values that travel together
NODES_TRIED_MAX = 3  # for a put, while nodes turn out to be gone


class StoreClient:
    """Make it with `connect`. Methods may run side by side on the loop that made it."""

    def __init__(
        self,
        bus: Bus,
        transfer: TransferEngineProtocol,
        members: Members,
        subjects: Subjects,
        tenant: str,
        nodes: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.blocks = BlockStore(bus, transfer, subjects, timeout_s=timeout_s)
        self._members = members
        self._tenant = TenantId(tenant)
        self._nodes = list(nodes)
        self._staging = Staging(transfer)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        nats_url: str = "nats://127.0.0.1:4222",
        *,
        mesh: str = "mp",
        tenant: str = "public",
        nodes: Sequence[str] = (),
        user: str = "",
        password: str = "",
        host_id: str = "",
        transports: Sequence[str] = ("shm", "rdma", "tcp"),
        wait_s: float = 5.0,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
    ) -> AsyncIterator[Self]:
        """A client of the mesh while inside. `nodes` empty: whichever are there, and at least one
        must show up within `wait_s`: NoNodes otherwise. `timeout_s`: for one answer of a node.
        `tls`: for a mesh whose tcp transfers are encrypted."""
        subjects, name = Subjects(mesh), f"client-{token_hex(4)}"
        bus = await NatsBus.connect(nats_url, user=user, password=password, name=name)
        try:
            with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
                transfer = await TransferEngine.start(
                    name,
                    host_id=host_id_of(host_id),
                    run_dir=folder,
                    transports=transports,
                    tls=tls,
                )
                try:
                    async with Members(bus, subjects, RealClock()) as members:
                        client = cls(bus, transfer, members, subjects, tenant, nodes, timeout_s)
                        await client.wait_for_nodes(wait_s)
                        yield client
                finally:
                    await transfer.close()
        finally:
            await bus.close()

    async def wait_for_nodes(self, wait_s: float) -> None:
        """Returns when a node is known. Raises NoNodes."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_s
        while not self.nodes():
            if loop.time() > ends_s:
                raise NoNodes(f"no store node within {wait_s:g} s")
            await asyncio.sleep(0.02)

    def nodes(self) -> list[str]:
        """Nodes that take new values now."""
        return self._nodes or [member.id for member in self._members.usable("store")]

    async def put(self, name: N, value: Value, *, replace: bool = False) -> bool:
        """Stores a value; False when the name is taken and `replace` is not set. Raises NoSpace,
        ValueTooLarge, PutFailed, NoNodes, and errors of bus, node and transfer."""
        (result,) = (await self.put_many({name: value}, replace=replace)).values()
        if isinstance(result, MoonpoolError):
            raise result
        return result

    async def put_many(
        self, values: Mapping[N, Value], *, replace: bool = False
    ) -> dict[N, bool | MoonpoolError]:
        """Per name what `put` would return or raise. One exchange per node and batch."""
        if replace:
            await self.remove_many(list(values))
        out: dict[N, bool | MoonpoolError] = {}
        left = list(values)
        for _ in range(NODES_TRIED_MAX):
            out |= await self._put_once(left, values)
            left = [name for name in left if isinstance(out[name], NoResponder)]
            if not left or not self.nodes():
                break
        return {name: out[name] for name in values}

    async def _put_once(
        self, names: Sequence[N], values: Mapping[N, Value]
    ) -> dict[N, bool | MoonpoolError]:
        """On the nodes that should hold them; a node that is gone is not asked again."""
        parts = [
            (node, part)
            for node, some in self._by_node(names).items()
            for part in _batches(some, values)
        ]
        results = await asyncio.gather(
            *(
                send_to(
                    self.blocks, self._staging, node, self._tenant,
                    [(self._key(name), values[name]) for name in part],
                )
                for node, part in parts
            )
        )  # fmt: skip
        out: dict[N, bool | MoonpoolError] = {}
        for (node, part), statuses in zip(parts, results, strict=True):
            for name, status in zip(part, statuses, strict=True):
                out[name] = outcome_error(name, status)
                self._note(node, out[name])
        return out

    def _note(self, node: str, outcome: object) -> None:
        """A node that nobody serves is gone: others hold its values from now on."""
        if isinstance(outcome, NoResponder):
            self._members.doubt(node)

    async def get(self, name: N) -> bytes | None:
        """The value, verified; None when no node has it (what a node held that is gone is gone).
        Raises CorruptValue when its bytes are damaged (the node is told and drops it), LeaseLost,
        StillLoading, and PeerError when a node that may have it does not answer."""
        (result,) = (await self.get_many([name])).values()
        return result.unwrap()

    async def get_many(self, names: Iterable[N]) -> dict[N, GetResult]:
        """Per name what `get` would return or raise. The node that should hold a value is asked
        first; what it does not have is asked of all others."""
        wanted = list(dict.fromkeys(names))
        results: dict[N, GetResult] = {name: GetResult() for name in wanted}
        by_node = self._by_node(wanted)
        first_asked = {name: node for node, some in by_node.items() for name in some}
        await self._get_from(by_node, results)
        for node in self.nodes():
            left = [n for n in wanted if results[n].value is None and first_asked[n] != node]
            if left:
                await self._get_from({node: left}, results)
        return results

    async def exists(self, name: N) -> bool:
        return (await self.exist_many([name]))[name]

    async def exist_many(self, names: Iterable[N]) -> dict[N, bool]:
        """Who is there now, on any node; not counted as a use."""
        wanted = list(dict.fromkeys(names))
        keys = [self._key(name) for name in wanted]
        found = await self._ask_all(lambda node: self.blocks.exist(node, self._tenant, keys))
        return {name: any(each[i] for each in found) for i, name in enumerate(wanted)}

    async def remove(self, name: N) -> bool:
        """Whether it was there. Pinned hard, it stays: unpin it first."""
        return (await self.remove_many([name]))[name]

    async def remove_many(self, names: Iterable[N]) -> dict[N, bool]:
        wanted = list(dict.fromkeys(names))
        keys = [self._key(name) for name in wanted]
        gone = await self._ask_all(lambda node: self.blocks.remove(node, self._tenant, keys))
        return {
            name: any(each[i] in ("removed", "leased") for each in gone)
            for i, name in enumerate(wanted)
        }

    async def pin(self, name: N, kind: str = "soft", *, ttl_s: float = 1800.0) -> bool:
        """kind: soft, hard, none. False when it is on no node, or beyond the node's quota."""
        key = self._key(name)
        done = await self._ask_all(
            lambda node: self.blocks.pin(node, self._tenant, [key], kind, ttl_s=ttl_s)
        )
        return any(each[0] in ("pinned", "unpinned") for each in done)

    async def stats(self) -> dict[str, StatsReply]:
        """By node."""

        async def ask(node: str) -> tuple[str, StatsReply]:
            return node, await self.blocks.stats(node)

        return dict(await self._ask_all(ask))

    async def _ask_all(self, ask: Callable[[str], Awaitable[A]]) -> list[A]:
        """All nodes' answers; a node that is gone has none. Raises what any other node raised."""
        nodes = self._require_nodes()
        answers = await asyncio.gather(*map(ask, nodes), return_exceptions=True)
        out: list[A] = []
        for node, answer in zip(nodes, answers, strict=True):
            self._note(node, answer)
            if not isinstance(answer, BaseException):
                out.append(answer)
            elif not isinstance(answer, NoResponder):
                raise answer
        return out

    async def _get_from(
        self, by_node: Mapping[str, Sequence[N]], results: dict[N, GetResult]
    ) -> None:
        parts = [
            (node, names[start : start + KEYS_MAX])
            for node, names in by_node.items()
            for start in range(0, len(names), KEYS_MAX)
        ]
        fetched = await asyncio.gather(
            *(
                fetch_from(
                    self.blocks, self._staging, node, self._tenant, [self._key(n) for n in part]
                )
                for node, part in parts
            )
        )
        for (node, part), some in zip(parts, fetched, strict=True):
            for name, result in zip(part, some, strict=True):
                self._note(node, result.error)
                if result.is_telling:
                    results[name] = result

    def _key(self, name: N) -> BlockKey:
        return value_key(self._tenant, name)

    def _ranked(self, name: N) -> list[str]:
        return rank_nodes(self._key(name), self._require_nodes())

    def _by_node(self, names: Iterable[N]) -> dict[str, list[N]]:
        by_node: dict[str, list[N]] = defaultdict(list)
        for name in names:
            by_node[self._ranked(name)[0]].append(name)
        return by_node

    def _require_nodes(self) -> list[str]:
        nodes = self.nodes()
        if not nodes:
            raise NoNodes("no store node is known right now")
        return nodes


def _batches(names: Sequence[N], values: Mapping[N, Value]) -> list[list[N]]:
    """Names in groups that one exchange carries."""
    groups: list[list[N]] = []
    room_bytes = 0
    for name in names:
        size_bytes = memoryview(values[name]).nbytes
        if not groups or size_bytes > room_bytes or len(groups[-1]) == KEYS_MAX:
            groups.append([])
            room_bytes = BATCH_BYTES
        groups[-1].append(name)
        room_bytes -= size_bytes
    return groups
