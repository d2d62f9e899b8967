"""Our side: two transfer engines, held to one transport. The client runs uvloop, as services do."""

import asyncio
import base64
import sys
import time
from typing import Any

import msgspec
import numpy as np
import uvloop

from bench.transfer import child
from bench.transfer.child import CALLS_MAX, CALLS_MIN, Bytes
from bench.transfer.shapes import BUFFER_BYTES, Shape
from moonpool.messages.segments import RegionGrant
from moonpool.transfer import LocalRegion, Op, OpenedGrant, TransferEngine, TransferRequest


async def _engine(name: str, way: str, folder: str) -> tuple[TransferEngine, LocalRegion, Bytes]:
    engine = await TransferEngine.start(name, host_id="here", run_dir=folder, transports=(way,))
    region = engine.allocate(BUFFER_BYTES)
    return engine, region, np.frombuffer(region.view, np.uint8)


async def server(way: str, folder: str) -> None:
    _, region, here = await _engine(f"{way}-server", way, folder)
    here[:] = child.pattern(1)
    grant = base64.b64encode(msgspec.msgpack.encode(region.grant("rw"))).decode()
    child.say({"grant": grant})
    await asyncio.Event().wait()


class Client:
    def __init__(self, engine: TransferEngine, region: LocalRegion, remote: OpenedGrant) -> None:
        self._engine = engine
        self._region = region
        self._remote = remote

    def prepared(self, op: str, shape: Shape) -> list[list[TransferRequest]]:
        """The batches of all places; what a caller knows before it asks for bytes."""
        return [
            [
                TransferRequest(Op(op), self._region, o, self._remote, o, shape.size)
                for o in shape.offsets(place)
            ]
            for place in range(shape.places)
        ]

    async def measure(self, op: str, shape: Shape, seconds: float) -> dict[str, Any]:
        batches, submit = self.prepared(op, shape), self._engine.submit
        await submit(batches[0])
        took_s: list[float] = []
        start = at = time.perf_counter()
        while len(took_s) < CALLS_MAX and (at - start < seconds or len(took_s) < CALLS_MIN):
            await submit(batches[len(took_s) % shape.places])
            now = time.perf_counter()
            took_s.append(now - at)
            at = now
        return child.summary(took_s, at - start, shape)

    async def check(self, here: Bytes) -> dict[str, Any]:
        """Runs the common check from a thread, since its calls are plain functions."""
        loop = asyncio.get_running_loop()

        def move(op: str, shape: Shape) -> child.Call:
            batches = self.prepared(op, shape)

            async def moved(place: int) -> None:
                await self._engine.submit(batches[place])

            def call(place: int) -> None:
                asyncio.run_coroutine_threadsafe(moved(place), loop).result(30.0)

            return call

        return await asyncio.to_thread(child.check, here, move)


async def client(way: str, folder: str, told: dict[str, Any]) -> None:
    engine, region, here = await _engine(f"{way}-client", way, folder)
    here[:] = 1
    grant = msgspec.msgpack.decode(base64.b64decode(told["grant"]), type=RegionGrant)
    mine = Client(engine, region, engine.open(grant))
    child.say(await mine.check(here))
    while True:
        question = await asyncio.to_thread(child.hear)
        child.say(await mine.measure(*child.asked(question)))


def main() -> None:
    child.begin()
    way, role, folder = sys.argv[1:4]
    uvloop.run(server(way, folder) if role == "server" else client(way, folder, child.hear()))


if __name__ == "__main__":
    main()
