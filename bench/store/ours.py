"""Our side: a NATS server, one store process, and a client in this process."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b

from bench.store.rounds import timed_async
from moonpool.bus import NatsBus, NoResponder
from moonpool.client import BlockStore
from moonpool.kv import BlockKey
from moonpool.messages import Subjects, TenantId
from moonpool.runtime.identity import host_id
from moonpool.transfer import TransferEngine
from moonpool.transfer.base import Region
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess

NODE = "bench-1"
TENANT = TenantId("public")
DRAM_BYTES = 1 << 30
BUFFER_BYTES = 64 << 20
CHUNK_BYTES = 128 << 10
START_S = 15.0


class OurStore:
    """KV blocks from registered memory to the pool and back, each verified on both sides."""

    def __init__(self, blocks: BlockStore, region: Region) -> None:
        self.blocks = blocks
        self._region = region

    async def put(self, prefix: str, size_bytes: int, count: int) -> list[float]:
        """Seconds per put of one block each."""
        chunk_bytes = min(CHUNK_BYTES, size_bytes)

        async def one(number: int) -> None:
            item = (key_of(prefix, number), self._place(number, size_bytes))
            (result,) = await self.blocks.put_blocks(NODE, TENANT, [item], size_bytes, chunk_bytes)
            if result != "committed":
                raise RuntimeError(f"a put says {result}")

        return await timed_async(one, count)

    async def get(self, prefix: str, size_bytes: int, count: int) -> list[float]:
        async def one(number: int) -> None:
            await self._get([key_of(prefix, number)], size_bytes, number)

        return await timed_async(one, count)

    async def batch_get(self, prefix: str, size_bytes: int, count: int, batch: int) -> list[float]:
        """Seconds per call for `batch` blocks each."""

        async def one(number: int) -> None:
            keys = [key_of(prefix, i) for i in range(number * batch, (number + 1) * batch)]
            await self._get(keys, size_bytes, 0)

        return await timed_async(one, count)

    async def exists(self, prefix: str, count: int) -> list[float]:
        async def one(number: int) -> None:
            (found,) = await self.blocks.exist(NODE, TENANT, [key_of(prefix, number)])
            if not found:
                raise RuntimeError("a block is gone")

        return await timed_async(one, count)

    async def clear(self, prefix: str, count: int) -> None:
        keys = [key_of(prefix, number) for number in range(count)]
        for start in range(0, count, 512):
            await self.blocks.remove(NODE, TENANT, keys[start : start + 512])

    async def _get(self, keys: Sequence[BlockKey], size_bytes: int, first: int) -> None:
        async with await self.blocks.open_get(NODE, TENANT, keys, wait_s=0.0) as get:
            targets = {i: self._place(first + i, size_bytes) for i in get.hits}
            corrupt = await get.read_all(targets)
            if len(targets) != len(keys) or corrupt or not await get.finish():
                raise RuntimeError("a get failed")

    def _place(self, number: int, size_bytes: int) -> tuple[Region, int]:
        return self._region, number % (BUFFER_BYTES // size_bytes) * size_bytes


def key_of(prefix: str, number: int) -> BlockKey:
    return BlockKey(blake2b(f"{prefix}{number}".encode(), digest_size=16).digest())


@asynccontextmanager
async def our_stores() -> AsyncIterator[tuple[OurStore, OurStore]]:
    """(through tcp, through shared memory), both clients of one node process."""
    with (
        NatsServer(jetstream=False) as nats,
        NodeProcess(nats.url, NODE, dram_bytes=DRAM_BYTES, headroom=0.1),
    ):
        async with (
            _store(nats.url, ["tcp"]) as remote,
            _store(nats.url, ["shm", "tcp"]) as local,
        ):
            yield remote, local


@asynccontextmanager
async def _store(nats_url: str, transports: Sequence[str]) -> AsyncIterator[OurStore]:
    bus = await NatsBus.connect(nats_url, name="bench")
    try:
        with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
            transfer = await TransferEngine.start(
                "bench", host_id=host_id(""), run_dir=folder, transports=transports
            )
            try:
                blocks = BlockStore(bus, transfer, Subjects("mp"))
                region = transfer.allocate(BUFFER_BYTES)
                region.view[:] = bytes(range(256)) * (BUFFER_BYTES // 256)
                await _wait_ready(blocks)
                yield OurStore(blocks, region)
            finally:
                await transfer.close()
    finally:
        await bus.close()


async def _wait_ready(blocks: BlockStore) -> None:
    """TimeoutError when the node does not serve in time."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                await blocks.stats(NODE)
                return
            except NoResponder:
                await asyncio.sleep(0.05)
