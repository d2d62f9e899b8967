"""Writes and reads numbered blocks whose right bytes a test can compute, as an engine would."""

import random
from collections.abc import Iterable, Sequence

from moonpool.client import StoreClient
from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import MoonpoolError
from moonpool.messages.ids import TenantId
from moonpool.messages.store import PutItem

SIZE, CHUNK = 256 << 10, 32 << 10
TENANT = TenantId("public")
BATCH = 16


def key_of(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "big"))


def bytes_of(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


class BlockHand:
    """On one node at a time. What is read is compared with what it must be: a wrong byte fails."""

    def __init__(self, store: StoreClient) -> None:
        self._blocks = store.blocks
        self._region = store.allocate(BATCH * SIZE)

    async def put(
        self, node: str, numbers: Sequence[int], *, durable: bool = False, replicas: int = 1
    ) -> set[int]:
        """Those that the node acknowledged as committed."""
        done: set[int] = set()
        for start in range(0, len(numbers), BATCH):
            part = numbers[start : start + BATCH]
            items = [PutItem(key_of(n), SIZE, CHUNK) for n in part]
            try:
                async with await self._blocks.open_put(
                    node, TENANT, items, replicas=replicas
                ) as put:
                    sources = {}
                    for i in put.wanted:
                        self._region.view[i * SIZE : (i + 1) * SIZE] = bytes_of(part[i])
                        sources[i] = (self._region, i * SIZE)
                    await put.write_chunks(0, SIZE // CHUNK, sources)
                    sums = {
                        i: chunk_checksums(memoryview(bytes_of(part[i])), CHUNK) for i in sources
                    }
                    results = await put.finish(sums, durable=durable)
            except MoonpoolError:
                continue  # not acknowledged
            done |= {n for n, said in zip(part, results, strict=True) if said == "committed"}
        return done

    async def get(self, node: str, numbers: Iterable[int]) -> set[int]:
        """Those that can be read, each exactly as it was written. A miss is no error, an answer
        that does not come is none either."""
        wanted, found = list(numbers), set[int]()
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            try:
                async with await self._blocks.open_get(
                    node, TENANT, [key_of(n) for n in part], wait_s=3.0
                ) as get:
                    places = {i: (self._region, i * SIZE) for i in get.hits}
                    bad = await get.read_all(places)
                    if not await get.finish():
                        continue  # the lease ran out: nothing was read
            except MoonpoolError:
                continue
            for i in set(places) - bad:
                assert self._region.view[i * SIZE : (i + 1) * SIZE] == bytes_of(part[i]), part[i]
                found.add(part[i])
        return found
