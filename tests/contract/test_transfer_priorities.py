"""Foreground before background, on every transport and whichever peer it is for."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from moonpool.messages.segments import Endpoint
from moonpool.transfer import LocalRegion, OpenedGrant, TransferEngine
from moonpool.transfer.background import PROMOTE_S
from moonpool.transfer.base import Priority
from moonpool.transfer.batch import TransferBatch
from moonpool.transfer.errors import TransferCancelled
from moonpool.transfer.wire import (
    FRAME_BYTES,
    HELLO_BYTES,
    Status,
    WireOp,
    pack_hello,
    pack_reply,
    unpack_frame,
)
from tests.contract.transfer_wiring import PATIENCE, WIRINGS, kinds, make_pair, read, start_engine
from tests.support.until import until

MIB = 1 << 20
SIZE = 32 * MIB
BATCHES = 4
URGENT = 32 * MIB  # more than one slice of the background
LONG_S = 60.0 * PATIENCE


class Three:
    """`near` reads from `far` and from `other`."""

    def __init__(
        self, near: TransferEngine, far: TransferEngine, other: TransferEngine, wiring: str
    ) -> None:
        self.near = near
        self.wiring = wiring
        self.local: LocalRegion = near.allocate(SIZE)
        self.urgent: LocalRegion = near.allocate(URGENT)
        self.peers: list[OpenedGrant] = [
            near.open(engine.allocate(SIZE).grant("r")) for engine in (far, other)
        ]

    @property
    def moved_bytes(self) -> float:
        return self.near.stats().get(f"{kinds(self.wiring)[0]}.read.bytes", 0.0)

    def backlog(self) -> list[TransferBatch]:
        return [
            self.near.submit(
                [read(self.local, self.peers[0], SIZE)],
                priority=Priority.BACKGROUND,
                deadline_s=LONG_S,
            )
            for _ in range(BATCHES)
        ]

    def ask(self, peer: int) -> TransferBatch:
        request = read(self.urgent, self.peers[peer], URGENT)
        return self.near.submit([request], deadline_s=LONG_S)

    async def warm(self) -> None:
        """Both are connected, with all that a transport opens once."""
        for peer in (0, 1):
            for _ in range(2):
                await self.ask(peer)
        await self.near.submit(
            [read(self.local, self.peers[0], SIZE)],
            priority=Priority.BACKGROUND,
            deadline_s=LONG_S,
        )


@pytest.fixture(params=WIRINGS)
async def three(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Three]:
    async with contextlib.AsyncExitStack() as stack:
        engines = []
        for name in ("near", "far", "other"):
            engine = await start_engine(name, request.param, tmp_path)
            stack.push_async_callback(engine.close)
            engines.append(engine)
        near, far, other = engines
        yield Three(near, far, other, request.param)


@pytest.mark.parametrize("peer", [0, 1], ids=["same-peer", "other-peer"])
async def test_little_of_a_backlog_moves_while_the_foreground_waits(
    three: Three, peer: int
) -> None:
    await three.warm()
    before = three.moved_bytes
    backlog = three.backlog()
    async with asyncio.timeout(LONG_S):
        while three.moved_bytes <= before:  # noqa: ASYNC110  `until` would look too late
            await asyncio.sleep(0)
    for _ in range(3):
        start, start_s = three.moved_bytes, time.monotonic()
        await three.ask(peer)
        moved = three.moved_bytes - start - URGENT
        patient = 1 + int((time.monotonic() - start_s) / PROMOTE_S)  # slices that go all the same
        begun = 6 * MIB * (2 if three.wiring in ("nics", "rdma") else 1)
        assert moved <= begun + patient * 2 * MIB + URGENT / 4  # its share
        assert not backlog[-1].done
    for batch in backlog:
        await batch


async def test_a_backlog_moves_all_the_same_while_the_foreground_never_ends(three: Three) -> None:
    await three.warm()
    start, asked = three.moved_bytes, 0
    backlog = three.backlog()[:1]
    async with asyncio.timeout(LONG_S):
        while three.moved_bytes - start - asked < 12 * MIB:
            await three.ask(1)
            asked += URGENT
    assert three.near.stats()["background_waiting"] > 0
    backlog[0].cancel()


async def test_a_backlog_that_is_cancelled_leaves_nothing_behind(three: Three) -> None:
    backlog = three.backlog()
    assert three.near.stats()["background_waiting"] > 0
    for batch in backlog:
        batch.cancel()
    await until(lambda: three.near.stats()["slices_under_way"] == 0, 10.0 * PATIENCE)
    assert three.near.stats()["background_waiting"] == 0
    await three.backlog()[0]


class Mute:
    """An owner of tcp that answers every READ with zeros, and at last none."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self.frames: list[tuple[object, int]] = []  # its stream, bytes asked for
        self.address = ""
        self.mute = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(HELLO_BYTES)
            writer.write(pack_hello(self._epoch, Status.OK))
            while True:
                frame = unpack_frame(await reader.readexactly(FRAME_BYTES))
                if frame.op is WireOp.READ:
                    self.frames.append((writer, frame.payload))
                if frame.op is WireOp.READ and not self.mute:
                    writer.write(pack_reply(Status.OK, frame.request, frame.payload))
                    writer.write(bytes(frame.payload))
                    await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        async with server:
            yield


@pytest.mark.skipif("tcp4" not in WIRINGS, reason="tcp is tried outside the virtual machine")
async def test_a_stream_is_kept_for_the_foreground(tmp_path: Path) -> None:
    async with make_pair("tcp4", tmp_path) as pair:
        mute = Mute(pair.far.epoch)
        async with mute.listening():
            grant = pair.far.allocate(SIZE).grant("r")
            ends = [Endpoint("tcp", mute.address)]
            remote = pair.near.open(msgspec.structs.replace(grant, endpoints=ends))
            mine = pair.near.allocate(SIZE)
            while len({stream for stream, _ in mute.frames}) < 2:
                await pair.near.submit([read(mine, remote, 9 * MIB)])
            mute.frames.clear()
            mute.mute = True
            slow = pair.near.submit([read(mine, remote, MIB)], priority=Priority.BACKGROUND)
            await until(lambda: len(mute.frames) == 1)
            slower = pair.near.submit([read(mine, remote, 2 * MIB)], priority=Priority.BACKGROUND)
            urgent = pair.near.submit([read(mine, remote, 3 * MIB)])
            await until(lambda: len(mute.frames) == 2)
            assert [size // MIB for _, size in mute.frames] == [1, 3]
            assert mute.frames[0][0] is not mute.frames[1][0]
            for batch in (slower, slow, urgent):
                batch.cancel()
                with contextlib.suppress(asyncio.CancelledError, TransferCancelled):
                    await batch
            await pair.near.close()
