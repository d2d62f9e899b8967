"""Any bytes by name, in the pool of a mesh: what outside programs use.

    async with StoreClient.connect("nats://127.0.0.1:4222") as store:
        await store.put("weights/7", data)
        data = await store.get("weights/7")

A name has a home, a node chosen from the name, which says where its bytes are. The pool is a cache:
nodes evict what is not pinned.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from secrets import randbits, token_hex
from typing import Self

from msgspec.structs import replace

from moonpool.bus import Bus, NatsBus
from moonpool.client.base import (
    SOFT_PIN_S,
    Copies,
    GetResult,
    Value,
    check_name,
    check_names,
)
from moonpool.client.blocks import BlockStore
from moonpool.client.copying import Copier
from moonpool.client.errors import NoNodes
from moonpool.client.keeper import Keeper
from moonpool.client.kit import Kit
from moonpool.client.lines import Lines
from moonpool.client.manifest import STRIPE_BYTES
from moonpool.client.mesh import Mesh
from moonpool.client.node_calls import TIMEOUT_S
from moonpool.client.placement import make_strategy
from moonpool.client.places import check_place, check_range, part_of
from moonpool.client.reader import Reader
from moonpool.client.sources import Sources
from moonpool.client.staging import Staging
from moonpool.client.viewing import viewed
from moonpool.client.wants import Read, Want
from moonpool.client.writer import Writer, as_item
from moonpool.clock import RealClock
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError, Subjects, TenantId
from moonpool.messages.store import ListedName, StatsReply
from moonpool.runtime import Members
from moonpool.runtime.identity import host_id as host_id_of
from moonpool.transfer import TlsFiles, TransferEngine
from moonpool.transfer.base import Region, TransferEngineProtocol

SCRATCH_BYTES = 4 << 20
STRIPE_MIN_BYTES = 64 << 10


class StoreClient:
    """A `Store` over a mesh. Make it with `connect`. Methods may run side by side on the loop that
    made it."""

    def __init__(
        self,
        bus: Bus,
        transfer: TransferEngineProtocol,
        members: Members,
        subjects: Subjects,
        tenant: str,
        nodes: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
        *,
        host_id: str = "",
        salt: bytes = b"",
        placement: str = "local_first",
        stripe_bytes: int = STRIPE_BYTES,
        lines: bool = True,
    ) -> None:
        """`lines`: what need not go over the bus does not. ValueError on an unknown placement or
        stripes that are too small."""
        if stripe_bytes < STRIPE_MIN_BYTES:
            raise ValueError(f"stripes of {stripe_bytes} bytes; {STRIPE_MIN_BYTES} at least")
        rng = Random(randbits(64))
        self.blocks = BlockStore(bus, transfer, subjects, timeout_s=timeout_s)
        self.mesh = Mesh(self.blocks, members, host_id, make_strategy(placement), rng, nodes)
        self._kit = Kit(
            self.blocks,
            self.mesh,
            transfer,
            Staging(transfer, SCRATCH_BYTES),
            Sources(rng),
            Lines(self.blocks.calls, transfer, TenantId(tenant), timeout_s, wanted=lines),
            TenantId(tenant),
            salt,
            stripe_bytes,
        )
        self._reader, self._writer = Reader(self._kit), Writer(self._kit)
        self._keeper = Keeper(self._kit, self._reader)
        self._copier = Copier(self._kit, self._keeper, self._reader)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        nats_url: str = "nats://127.0.0.1:4222",
        *,
        mesh: str = "mp",
        tenant: str = "public",
        salt: bytes = b"",
        nodes: Sequence[str] = (),
        user: str = "",
        password: str = "",
        host_id: str = "",
        transports: Sequence[str] = ("shm", "rdma", "tcp"),
        placement: str = "local_first",
        stripe_bytes: int = STRIPE_BYTES,
        wait_s: float = 5.0,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
        lines: bool = True,
    ) -> AsyncIterator[Self]:
        """A client of the mesh while inside. `nodes` empty: all that are there. A server and at
        least one node must show up within `wait_s`: BusUnavailable or NoNodes otherwise. `salt`:
        names are looked up with it, so that who does not have it cannot find them. `timeout_s`: for
        one answer of a node. `tls`: for a mesh whose tcp transfers are encrypted."""
        subjects, name = Subjects(mesh), f"client-{token_hex(4)}"
        host = host_id_of(host_id)
        ends_s = time.monotonic() + wait_s
        bus = await NatsBus.connect(
            nats_url, user=user, password=password, name=name, wait_s=wait_s
        )
        try:
            with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
                transfer = await TransferEngine.start(
                    name, host_id=host, run_dir=folder, transports=transports, tls=tls
                )
                try:
                    async with Members(bus, subjects, RealClock(), calls=("store",)) as members:
                        client = cls(
                            bus, transfer, members, subjects, tenant, nodes, timeout_s,
                            host_id=host, salt=salt, placement=placement, stripe_bytes=stripe_bytes,
                            lines=lines,
                        )  # fmt: skip
                        await client.wait_for_nodes(max(0.0, ends_s - time.monotonic()))
                        if not nodes:
                            await members.gather("store", ends_s - time.monotonic())
                        yield client
                finally:
                    await transfer.close()
        finally:
            await bus.close()

    async def wait_for_nodes(self, wait_s: float, count: int = 1) -> None:
        """Returns when so many nodes are known. Raises NoNodes."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_s
        while len(self.nodes()) < count:
            if loop.time() > ends_s:
                raise NoNodes(f"{len(self.nodes())} of {count} store nodes within {wait_s:g} s")
            await asyncio.sleep(0.02)

    def nodes(self) -> list[str]:
        """Nodes that take new values now."""
        return self.mesh.known()

    # --- writing ---

    async def put(
        self, name: str, value: Value, *, replace: bool = False, replicas: int = 1
    ) -> bool:
        (result,) = (
            await self.put_many({name: value}, replace=replace, replicas=replicas)
        ).values()
        if isinstance(result, MoonpoolError):
            raise result
        return result

    async def put_many(
        self, values: Mapping[str, Value], *, replace: bool = False, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]:
        """One exchange per node and batch."""
        items = [as_item(self._kit, check_name(name), value) for name, value in values.items()]
        return await self._writer.put(items, replaces=replace, replicas=replicas)

    async def upsert(self, name: str, value: Value, *, replicas: int = 1) -> None:
        await self.put(name, value, replace=True, replicas=replicas)

    async def upsert_many(
        self, values: Mapping[str, Value], *, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]:
        return await self.put_many(values, replace=True, replicas=replicas)

    async def put_from(
        self,
        name: str,
        region: Region,
        offset: int,
        size_bytes: int,
        *,
        replace: bool = False,
        replicas: int = 1,
    ) -> bool:
        view = part_of(region, offset, size_bytes)
        item = as_item(self._kit, check_name(name), view, (region, offset))
        (result,) = (await self._writer.put([item], replaces=replace, replicas=replicas)).values()
        if isinstance(result, MoonpoolError):
            raise result
        return result

    # --- reading ---

    async def get(self, name: str) -> bytes | None:
        (read,) = await self._reader.read([self._want(name)])
        return read.result().unwrap()

    async def get_many(self, names: Iterable[str]) -> dict[str, GetResult]:
        """One message per node that should have some, and to all others for what they have not."""
        wanted = check_names(names)
        reads = await self._reader.read([self._want(name) for name in wanted])
        return {name: read.result() for name, read in zip(wanted, reads, strict=True)}

    def view(self, name: str) -> AbstractAsyncContextManager[memoryview | None]:
        return viewed(self._kit, self._reader, self._want(name))

    async def get_range(self, name: str, start: int, length: int) -> bytes | None:
        check_range(start, length)
        want = Want(self._kit.key(check_name(name)), name, start, length)
        (read,) = await self._reader.read([want])
        return read.result().unwrap()

    async def get_range_many(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, GetResult]:
        wants = []
        for name, (start, length) in ranges.items():
            check_range(start, length)
            wants.append(Want(self._kit.key(check_name(name)), name, start, length))
        reads = await self._reader.read(wants)
        return {name: read.result() for name, read in zip(ranges, reads, strict=True)}

    async def get_into(
        self, name: str, region: Region, offset: int = 0, room_bytes: int | None = None
    ) -> int | None:
        room = {
            name: (region, offset, region.length - offset if room_bytes is None else room_bytes)
        }
        (result,) = (await self.get_into_many(room)).values()
        if isinstance(result, MoonpoolError):
            raise result
        return result

    async def get_into_many(
        self, targets: Mapping[str, tuple[Region, int, int]]
    ) -> dict[str, int | MoonpoolError | None]:
        wants = []
        for name, (region, offset, room_bytes) in targets.items():
            check_place(region, offset, room_bytes)
            key, into = self._kit.key(check_name(name)), (region, offset)
            wants.append(Want(key, name, into=into, room_bytes=room_bytes))
        reads = await self._reader.read(wants)
        return {name: _size_of(read) for name, read in zip(targets, reads, strict=True)}

    def register(self, buffer: object) -> Region:
        return self._kit.transfer.register_memory(buffer)

    def allocate(self, size_bytes: int) -> Region:
        return self._kit.transfer.allocate(size_bytes)

    # --- asking and removing ---

    async def exists(self, name: str) -> bool:
        return await self._keeper.has(check_name(name))

    async def exist_many(self, names: Iterable[str]) -> dict[str, bool]:
        return await self._keeper.exist(check_names(names))

    async def size(self, name: str) -> int | None:
        return (await self.size_many([name]))[name]

    async def size_many(self, names: Iterable[str]) -> dict[str, int | None]:
        return await self._keeper.sizes(check_names(names))

    async def remove(self, name: str) -> bool:
        return (await self.remove_many([name]))[name]

    async def remove_many(self, names: Iterable[str]) -> dict[str, bool]:
        return await self._keeper.remove(check_names(names))

    async def remove_prefix(self, prefix: str) -> int:
        return await self._keeper.remove_prefix(prefix)

    async def pin(self, name: str, kind: str = "soft", *, ttl_s: float = SOFT_PIN_S) -> bool:
        return (await self.pin_many([name], kind, ttl_s=ttl_s))[name]

    async def pin_many(
        self, names: Iterable[str], kind: str = "soft", *, ttl_s: float = SOFT_PIN_S
    ) -> dict[str, bool]:
        return await self._keeper.pin(check_names(names), kind, ttl_s)

    async def secure(self, name: str) -> bool:
        return (await self.secure_many([name]))[name]

    async def secure_many(self, names: Iterable[str]) -> dict[str, bool]:
        return await self._keeper.secure(check_names(names))

    async def unpin(self, name: str) -> bool:
        return await self.pin(name, "none")

    async def unpin_many(self, names: Iterable[str]) -> dict[str, bool]:
        return await self.pin_many(names, "none")

    def list_names(self, prefix: str = "") -> AsyncIterator[ListedName]:
        return self._keeper.names(prefix)

    async def count(self, prefix: str = "") -> int:
        return len([None async for _ in self._keeper.names(prefix)])

    async def wipe(self) -> int:
        return await self._keeper.wipe()

    # --- copies ---

    async def replicas(self, name: str) -> Copies | None:
        """Where a value lies; None when it is nowhere."""
        return await self._copier.copies(check_name(name))

    async def add_replica(self, name: str, node: str) -> bool:
        """`node` holds all of the value afterwards; False when it is nowhere. Raises UnknownNode,
        NoSpace, PutFailed."""
        return await self._copier.add(check_name(name), node)

    async def drop_replica(self, name: str, node: str) -> bool:
        """Whether `node` held any of it. Raises LastCopy."""
        return await self._copier.drop(check_name(name), node)

    async def move_replica(self, name: str, source: str, target: str) -> bool:
        """False when it is nowhere, or not on `source`. Raises what the two above raise."""
        return await self._copier.move(check_name(name), source, target)

    async def stats(self) -> dict[str, StatsReply]:
        """By node; of tenants, our own share alone. Operators ask `blocks.stats(node)`."""
        told = await self.mesh.ask_all(self.blocks.stats)
        return {node: _own_share(reply, self.tenant) for node, reply in told.items()}

    def own_stats(self) -> dict[str, int]:
        """This client's memory and reads under way."""
        kit = self._kit
        return {**kit.staging.stats(), **kit.sources.stats(), **kit.lines.stats()}

    def key(self, name: str) -> BlockKey:
        """What nodes know the name by."""
        return self._kit.key(check_name(name))

    def home(self, name: str) -> str:
        """The node that answers for the name now. Raises NoNodes."""
        return self.mesh.homes(self.key(name))[0]

    @property
    def tenant(self) -> TenantId:
        return self._kit.tenant

    def _want(self, name: str) -> Want:
        return Want(self._kit.key(check_name(name)), name)


def _own_share(told: StatsReply, tenant: TenantId) -> StatsReply:
    return replace(told, tenants={t: s for t, s in told.tenants.items() if t == tenant})


def _size_of(read: Read) -> int | MoonpoolError | None:
    if read.error is not None:
        return read.error
    return read.size_bytes if read.size_bytes >= 0 else None
