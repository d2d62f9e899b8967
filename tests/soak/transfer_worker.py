"""One of several engines that move bytes between one another at random, and check all of them.

A region has a half that only its owner writes, from a seed that it tells, and a stripe per peer
that only this peer writes. So a reader always knows what it must see. Started by
`tests.soak.transfer`.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.messages.errors import MoonpoolError
from moonpool.messages.segments import RegionGrant
from moonpool.transfer import (
    LocalRegion,
    Op,
    OpenedGrant,
    Priority,
    TransferCorrupt,
    TransferEngine,
    TransferRequest,
)

STRIPE_BYTES = 1 << 20
FIXED_BYTES = 3 << 20
TASKS = 4
GRACE_S = 10.0  # beyond a deadline, on a machine that has other things to do
SAMPLE_S = 2.0


class Told(msgspec.Struct, frozen=True):
    """What a worker tells the others, as a file."""

    grant: RegionGrant
    seed: int


@dataclass(frozen=True)
class Place:
    """Where a worker stands among the others."""

    index: int
    count: int
    folder: Path
    pace_s: float

    def file_of(self, index: int) -> Path:
        return self.folder / f"worker-{index}.json"


def fixed_bytes(seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, FIXED_BYTES, dtype=np.uint8)


class Worker:
    def __init__(self, place: Place, engine: TransferEngine) -> None:
        self._place = place
        self._engine = engine
        self._random = random.Random(f"{place.index} {os.getpid()}")
        self._fixed: dict[int, npt.NDArray[np.uint8]] = {}  # by seed, of peers now
        self.counted: Counter[str] = Counter()
        self._region: LocalRegion | None = None
        self._stopping = False

    def offer(self) -> None:
        """A fresh region, in place of the one before."""
        size = FIXED_BYTES + self._place.count * STRIPE_BYTES
        seed = self._random.getrandbits(32)
        region = self._region = self._engine.allocate(size)
        np.frombuffer(region.view, np.uint8)[:FIXED_BYTES] = fixed_bytes(seed)
        file = self._place.file_of(self._place.index)
        fresh = file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(Told(region.grant("rw"), seed)))
        fresh.replace(file)

    async def run(self) -> None:
        """Until `stop`."""
        self.offer()
        async with asyncio.TaskGroup() as group:
            for number in range(TASKS):
                group.create_task(self._move(number))
            group.create_task(self._renew())

    def stop(self) -> None:
        self._stopping = True

    async def _renew(self) -> None:
        """Now and then the region goes, under whoever uses it."""
        while not self._stopping:
            await asyncio.sleep(self._random.uniform(0.2, 1.0))
            if self._random.random() < 0.1:
                old = self._region
                assert old is not None
                self.offer()
                try:
                    await old.unregister(timeout_s=1.0)
                except MoonpoolError as error:  # a stopped peer may hold it
                    self.counted[f"unregister.{error.code}"] += 1

    async def _move(self, number: int) -> None:
        local = self._engine.allocate(STRIPE_BYTES)
        while not self._stopping:
            await asyncio.sleep(self._random.uniform(0, 2 * self._place.pace_s))
            try:
                await self._once(local, number)
            except MoonpoolError as error:
                self.counted[f"error.{error.code}"] += 1
                if isinstance(error, TransferCorrupt):
                    self.counted["damage"] += 1
            except TimeoutError:
                self.counted["hangs"] += 1
        await local.unregister()

    async def _once(self, local: LocalRegion, number: int) -> None:
        peers = [i for i in range(self._place.count) if i != self._place.index]
        peer = self._random.choice(peers)
        try:
            told = msgspec.json.decode(self._place.file_of(peer).read_bytes(), type=Told)
        except FileNotFoundError:
            await asyncio.sleep(0.05)
            return
        remote = self._engine.open(told.grant)
        ways = (self._read_fixed, self._write_and_read, self._map, self._cancel)
        way = self._random.choices(ways, (4, 4, 1, 1))[0]
        deadline_s = self._random.choice((0.1, 1.0, 5.0))
        async with asyncio.timeout(deadline_s * 2 + GRACE_S):
            await way(local, remote, told, number, deadline_s)
        self.counted["batches"] += 1

    def _pieces(self, total: int) -> list[tuple[int, int]]:
        """Random (offset, length) pairs side by side."""
        pieces: list[tuple[int, int]] = []
        at = 0
        most = self._random.choice((1, 16, 200))
        while at < total and len(pieces) < most:
            length = min(total - at, int(2 ** self._random.uniform(0, 20)))
            pieces.append((at, length))
            at += length + self._random.choice((0, 0, 13))
        return pieces

    async def _submit(
        self, requests: list[TransferRequest], deadline_s: float, *, cancel: bool = False
    ) -> None:
        batch = self._engine.submit(
            requests,
            priority=self._random.choice((Priority.FOREGROUND, Priority.BACKGROUND)),
            deadline_s=deadline_s,
            checksum=self._random.random() < 0.3,
        )
        if cancel:
            await asyncio.sleep(self._random.uniform(0, 0.003))
            batch.cancel()
        await batch
        self.counted["bytes"] += sum(request.length for request in requests)

    def _seen(self, good: bool) -> None:
        if not good:
            self.counted["damage"] += 1

    def _expected(self, seed: int) -> npt.NDArray[np.uint8]:
        if seed not in self._fixed:
            if len(self._fixed) >= 2 * self._place.count:
                del self._fixed[next(iter(self._fixed))]
            self._fixed[seed] = fixed_bytes(seed)
        return self._fixed[seed]

    async def _read_fixed(
        self, local: LocalRegion, remote: OpenedGrant, told: Told, number: int, deadline_s: float
    ) -> None:
        base = self._random.randrange(FIXED_BYTES - STRIPE_BYTES)
        pieces = self._pieces(STRIPE_BYTES)
        await self._submit(
            [TransferRequest(Op.READ, local, at, remote, base + at, n) for at, n in pieces],
            deadline_s,
        )
        mine, theirs = np.frombuffer(local.view, np.uint8), self._expected(told.seed)
        self._seen(
            all(np.array_equal(mine[a : a + n], theirs[base + a : base + a + n]) for a, n in pieces)
        )

    async def _write_and_read(
        self, local: LocalRegion, remote: OpenedGrant, told: Told, number: int, deadline_s: float
    ) -> None:
        """To our stripe; each of our tasks has a part of it."""
        part = STRIPE_BYTES // TASKS
        base = FIXED_BYTES + self._place.index * STRIPE_BYTES + number * part
        mine = np.frombuffer(local.view, np.uint8)
        sent = np.frombuffer(self._random.randbytes(part), np.uint8)
        mine[:part] = sent
        pieces = self._pieces(part)
        for op in (Op.WRITE, Op.READ):
            if op is Op.READ:
                mine[:part] = 0
            await self._submit(
                [TransferRequest(op, local, at, remote, base + at, n) for at, n in pieces],
                deadline_s,
            )
        self._seen(all(np.array_equal(mine[a : a + n], sent[a : a + n]) for a, n in pieces))

    async def _map(
        self, local: LocalRegion, remote: OpenedGrant, told: Told, number: int, deadline_s: float
    ) -> None:
        if not any(path.name == "shm" for path in remote.paths):
            return
        with await self._engine.map_remote(remote, lease_s=0.5, deadline_s=deadline_s) as mapped:
            start = self._random.randrange(FIXED_BYTES - 4096)
            seen = bytes(mapped.view[start : start + 4096])
            mapped.check()
        self._seen(seen == self._expected(told.seed)[start : start + 4096].tobytes())

    async def _cancel(
        self, local: LocalRegion, remote: OpenedGrant, told: Told, number: int, deadline_s: float
    ) -> None:
        request = TransferRequest(Op.READ, local, 0, remote, 0, STRIPE_BYTES)
        await self._submit([request], deadline_s, cancel=True)

    def sample(self) -> dict[str, float]:
        stats = self._engine.stats()
        return {
            **_process(),
            "regions": stats["regions"],
            "under_way": stats["slices_under_way"],
            "retries": stats.get("retries", 0.0),
            **{key: float(value) for key, value in self.counted.items()},
        }


def _process() -> dict[str, float]:
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    kib = {key: int(status[key].split()[0]) for key in ("RssAnon", "RssShmem")}
    return {
        "unix_s": time.time(),
        "anon_mib": kib["RssAnon"] / 1024,
        "shared_mib": kib["RssShmem"] / 1024,
        "descriptors": float(len(os.listdir("/proc/self/fd"))),
        "threads": float(status["Threads"]),
    }


async def _report(worker: Worker) -> None:
    while True:
        print(json.dumps(worker.sample()), flush=True)
        await asyncio.sleep(SAMPLE_S)


async def main() -> None:
    index, count, folder, pace_s, host = sys.argv[1:6]
    place = Place(int(index), int(count), Path(folder), float(pace_s))
    engine = await TransferEngine.start(
        f"worker-{index}", host_id=host, run_dir=folder, transports=("shm", "tcp")
    )
    worker = Worker(place, engine)
    reports = asyncio.create_task(_report(worker))
    work = asyncio.create_task(worker.run())
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), worker.stop)  # closed by whoever started us
    await asyncio.wait({work, reports}, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin.fileno())
    reports.cancel()
    await work
    await engine.close()
    final = worker.sample() | {"final": 1.0}
    print(json.dumps(final), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
