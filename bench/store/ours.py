"""Our side: a NATS server, one store process, and a client in this process."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from bench.store.rounds import timed_async
from moonpool.client import StoreClient
from moonpool.transfer.base import Region
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess

NODE = "bench-1"
DRAM_BYTES = 1 << 30
BUFFER_BYTES = 64 << 20
START_S = 15.0


class OurStore:
    """Values by name, from registered memory to the pool and back, verified on both sides."""

    def __init__(self, client: StoreClient, region: Region) -> None:
        self.client = client
        self._region = region

    async def put(self, prefix: str, size_bytes: int, count: int) -> list[float]:
        """Seconds per put of one value each."""

        async def one(number: int) -> None:
            offset = self._offset(number, size_bytes)
            if not await self.client.put_from(
                f"{prefix}{number}", self._region, offset, size_bytes
            ):
                raise RuntimeError("a name was taken")

        return await timed_async(one, count)

    async def get(self, prefix: str, size_bytes: int, count: int) -> list[float]:
        async def one(number: int) -> None:
            offset = self._offset(number, size_bytes)
            got = await self.client.get_into(f"{prefix}{number}", self._region, offset, size_bytes)
            if got != size_bytes:
                raise RuntimeError(f"a get says {got}")

        return await timed_async(one, count)

    async def view(self, prefix: str, size_bytes: int, count: int) -> list[float]:
        """Seconds until a value is there to be read, where it lies."""

        async def one(number: int) -> None:
            async with self.client.view(f"{prefix}{number}") as seen:
                if seen is None or len(seen) != size_bytes:
                    raise RuntimeError("a value is gone")

        return await timed_async(one, count)

    async def batch_get(self, prefix: str, size_bytes: int, count: int, batch: int) -> list[float]:
        """Seconds per call for `batch` values each."""

        async def one(number: int) -> None:
            first = number * batch
            targets = {
                f"{prefix}{first + i}": (self._region, i * size_bytes, size_bytes)
                for i in range(batch)
            }
            got = await self.client.get_into_many(targets)
            if set(got.values()) != {size_bytes}:
                raise RuntimeError(f"a batch of gets says {got}")

        return await timed_async(one, count)

    async def exists(self, prefix: str, count: int) -> list[float]:
        async def one(number: int) -> None:
            if not await self.client.exists(f"{prefix}{number}"):
                raise RuntimeError("a value is gone")

        return await timed_async(one, count)

    async def fill(self, names: Iterable[str], size_bytes: int) -> None:
        """All in one call."""
        done: Mapping[str, object] = await self.client.put_many(
            dict.fromkeys(names, bytes(size_bytes))
        )
        if not all(result is True for result in done.values()):
            raise RuntimeError("a put failed")

    async def clear(self, prefix: str, count: int) -> None:
        await self.client.remove_many([f"{prefix}{number}" for number in range(count)])

    def _offset(self, number: int, size_bytes: int) -> int:
        return number % (BUFFER_BYTES // size_bytes) * size_bytes


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
    async with StoreClient.connect(nats_url, transports=transports, wait_s=START_S) as client:
        region = client.allocate(BUFFER_BYTES)
        region.view[:] = bytes(range(256)) * (BUFFER_BYTES // 256)
        yield OurStore(client, region)
