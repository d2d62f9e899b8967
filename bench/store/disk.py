"""The nvme tier beside raw direct reads: one file system, the same sizes, as many at a time."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter

from bench.store.rounds import Compared, Side, compare, say
from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import TenantId
from moonpool.transfer.memory import allocate
from services.store.tiers.direct import Arena, DirectFile
from services.store.tiers.nvme_vault import THREADS, NvmeVault
from services.store.tiers.record import Facts, record_bytes, round_up
from services.store.tiers.vault import Item

MIB, KIB = 1 << 20, 1 << 10
DATA_BYTES = 384 << 20
CHUNK_BYTES = 128 << 10
OURS = f"the nvme tier, into the dram segment, verified, {THREADS} at a time"
THEIRS = f"pread with O_DIRECT into huge pages, {THREADS} at a time"


async def nvme_over_raw(folder: Path, rounds: int, *, quick: bool) -> list[Compared]:
    """Reads and acknowledged writes; OSError where the file system has no direct I/O."""
    say(f"the nvme tier beside raw direct I/O, under {folder}")
    sizes = [4 * MIB] if quick else [4 * MIB, MIB, 256 * KIB]
    done = []
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-", dir=folder) as made:
        for size_bytes in sizes:
            suffix = "" if size_bytes == 4 * MIB else f"_{size_bytes >> 10}KiB"
            sides = _Sides(Path(made) / str(size_bytes), size_bytes)
            try:
                for verb in ("write", "read"):
                    compared = Compared(f"nvme_{verb}_over_raw{suffix}", OURS, THEIRS, size_bytes)
                    ours, theirs = sides.ours(verb), sides.raw(verb)
                    await compare(compared, ours, theirs, rounds)
                    done.append(compared)
            finally:
                sides.close()
    return done


class _Sides:
    """The same objects in the vault and in a plain file, and threads for both."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._count = min(512, DATA_BYTES // size_bytes)
        self._pool = ThreadPoolExecutor(THREADS)
        step = record_bytes(size_bytes, CHUNK_BYTES)
        folder.mkdir()
        self._vault = NvmeVault(folder, step * self._count)
        list(self._vault.open())
        self._memory = allocate(THREADS * size_bytes)
        view = memoryview(self._memory.array).cast("B")
        view[:] = os.urandom(64 * KIB) * (view.nbytes // (64 * KIB))
        self._views = [view[i * size_bytes : (i + 1) * size_bytes] for i in range(THREADS)]
        self._sums = chunk_checksums(self._views[0], CHUNK_BYTES)
        self._items = [
            Item(Facts(BlockKey(i.to_bytes(16)), TenantId("t"), size_bytes, CHUNK_BYTES, i + 1), at)
            for i, at in zip(range(self._count), count(0, step), strict=False)
        ]
        self._raw = DirectFile(folder / "raw.dat", round_up(size_bytes) * self._count)
        self._arenas = [Arena(size_bytes) for _ in range(THREADS)]
        for arena in self._arenas:
            arena.view[:size_bytes] = self._views[0]

    def close(self) -> None:
        self._pool.shutdown()
        self._vault.close()
        self._raw.close()

    def ours(self, verb: str) -> Side:
        def read(lane: int, number: int) -> None:
            self._vault.read(self._items[number], self._views[lane])

        def write(lane: int, number: int) -> None:
            self._vault.write(self._items[number], self._sums, self._views[0])

        return partial(self._round, read if verb == "read" else write)

    def raw(self, verb: str) -> Side:
        """A raw write is acknowledged when it is synced, as ours is."""

        def read(lane: int, number: int) -> None:
            self._raw.read(number * self._size_bytes, self._arenas[lane].view[: self._size_bytes])

        def write(lane: int, number: int) -> None:
            self._raw.write(number * self._size_bytes, self._arenas[lane].view[: self._size_bytes])
            self._raw.sync()

        return partial(self._round, read if verb == "read" else write)

    async def _round(self, do: Callable[[int, int], None]) -> list[float]:
        """Seconds per object, all of them once, by as many threads as there are lanes."""
        numbers = iter(range(self._count))

        def lane(index: int) -> None:
            for number in numbers:  # one iterator for all lanes: `next` on it is atomic
                do(index, number)

        loop = asyncio.get_running_loop()
        began_s = perf_counter()
        lanes = [loop.run_in_executor(self._pool, lane, index) for index in range(THREADS)]
        await asyncio.gather(*lanes)
        return [(perf_counter() - began_s) / self._count]
