"""The oss tier beside plain boto3 on the same S3 server, as many objects at a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter

from bench.store.rounds import Compared, Side, compare, say
from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import TenantId
from services.store.tiers.oss_vault import OssVault
from services.store.tiers.record import Facts
from services.store.tiers.vault import Item
from tests.support.s3_server import BUCKET, S3Server

MIB = 1 << 20
SIZE_BYTES = 4 * MIB
CHUNK_BYTES = 128 << 10
OBJECTS = 24
LANES = 4
OURS = f"the oss tier, verified, {LANES} at a time"
THEIRS = f"boto3 get_object and put_object, {LANES} at a time"


async def oss_over_boto3(rounds: int) -> list[Compared]:
    """RuntimeError when the S3 server does not serve."""
    say("the oss tier beside boto3")
    with S3Server() as server, ThreadPoolExecutor(LANES) as pool:
        sides = _Sides(server, pool)
        done = []
        for verb in ("put", "get"):
            compared = Compared(f"oss_{verb}_over_boto3", OURS, THEIRS, SIZE_BYTES)
            turns = rounds if verb == "get" else max(3, rounds // 3)  # writes take much longer
            await compare(compared, sides.ours(verb), sides.boto3(verb), turns)
            done.append(compared)
        sides.close()
        return done


class _Sides:
    def __init__(self, server: S3Server, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._vault = OssVault(server.bucket, "mp")
        self._client = server.client()
        self._views = [memoryview(bytearray(SIZE_BYTES)) for _ in range(LANES)]
        self._body = bytes(range(256)) * (SIZE_BYTES // 256)
        self._sums = chunk_checksums(memoryview(self._body), CHUNK_BYTES)
        self._items = [
            Item(Facts(BlockKey(i.to_bytes(16)), TenantId("t"), SIZE_BYTES, CHUNK_BYTES, i + 1), 0)
            for i in range(OBJECTS)
        ]

    def close(self) -> None:
        self._vault.close()
        self._client.close()

    def ours(self, verb: str) -> Side:
        def get(lane: int, number: int) -> None:
            self._vault.read(self._items[number], self._views[lane])

        def put(lane: int, number: int) -> None:
            self._vault.write(self._items[number], self._sums, memoryview(self._body))

        return partial(self._round, get if verb == "get" else put)

    def boto3(self, verb: str) -> Side:
        def get(lane: int, number: int) -> None:
            reply = self._client.get_object(Bucket=BUCKET, Key=f"plain-{number}")
            assert len(reply["Body"].read()) == SIZE_BYTES

        def put(lane: int, number: int) -> None:
            self._client.put_object(Bucket=BUCKET, Key=f"plain-{number}", Body=self._body)

        return partial(self._round, get if verb == "get" else put)

    async def _round(self, do: Callable[[int, int], None]) -> list[float]:
        """Seconds per object."""
        numbers = iter(range(OBJECTS))

        def lane(index: int) -> None:
            for number in numbers:  # one iterator for all lanes: `next` on it is atomic
                do(index, number)

        loop = asyncio.get_running_loop()
        began_s = perf_counter()
        await asyncio.gather(*(loop.run_in_executor(self._pool, lane, i) for i in range(LANES)))
        return [(perf_counter() - began_s) / OBJECTS]
