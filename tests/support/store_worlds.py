"""The stores that one contract suite runs over: in memory, and meshes of one and three nodes."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from moonpool.bus import MemoryBroker
from moonpool.client import MemoryStore, Store, StoreClient
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess, memory_client, memory_node
from tests.support.until import until

DRAM_BYTES = 24 << 20
STRIPE_BYTES = 128 << 10  # small, so that middling values are striped


@dataclass(frozen=True)
class RealMesh:
    """Processes on a NATS server of their own."""

    server: NatsServer
    nodes: list[NodeProcess]


@contextmanager
def real_mesh(count: int, **settings: object) -> Iterator[RealMesh]:
    """Nodes node-1.. as processes."""
    with NatsServer() as server:
        nodes: list[NodeProcess] = []
        try:
            for n in range(1, count + 1):
                given = {"dram_bytes": DRAM_BYTES, "host_id": "here", **settings}
                nodes.append(NodeProcess(server.url, f"node-{n}", **given))
            yield RealMesh(server, nodes)
        finally:
            for node in nodes:
                node.__exit__(None, None, None)


@asynccontextmanager
async def memory_mesh(count: int, **given: Any) -> AsyncIterator[StoreClient]:
    """A client of so many nodes in this process."""
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        ids = [f"node-{n}" for n in range(1, count + 1)]
        for id in ids:
            await stack.enter_async_context(
                memory_node(broker, id, dram_bytes=DRAM_BYTES, host_id="here")
            )
        options: dict[str, Any] = {"stripe_bytes": STRIPE_BYTES, **given}
        yield await stack.enter_async_context(memory_client(broker, *ids, **options))


@asynccontextmanager
async def client_of(mesh: RealMesh, count: int, **given: Any) -> AsyncIterator[StoreClient]:
    """A client of the first `count` nodes."""
    ids = [node.id for node in mesh.nodes[:count]]
    await until(lambda: all("serving" in node.lines() for node in mesh.nodes[:count]), 30.0)
    options: dict[str, Any] = {"stripe_bytes": STRIPE_BYTES, "host_id": "here", "nodes": ids}
    async with StoreClient.connect(mesh.server.url, **(options | given)) as store:
        yield store


@asynccontextmanager
async def store_world(kind: str, mesh: RealMesh | None = None) -> AsyncIterator[Store]:
    """kind: memory, node, nodes (in this process), real or reals (processes of `mesh`)."""
    if kind == "memory":
        yield MemoryStore(DRAM_BYTES)
    elif kind in ("node", "nodes"):
        async with memory_mesh(1 if kind == "node" else 3) as store:
            yield store
    else:
        assert mesh is not None
        async with client_of(mesh, 1 if kind == "real" else 3) as store:
            await store.wipe()
            yield store


def make_value(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(f"{size_bytes} {seed}").randbytes(size_bytes)
