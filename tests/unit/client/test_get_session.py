"""Reads whose owner stands still in the middle of a transfer."""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from moonpool.bus import Endpoint, MemoryBroker, MemoryBus, RequestTimeout
from moonpool.client import node_calls, watch
from moonpool.client.blocks import BlockStore
from moonpool.client.get_session import SpanRead
from moonpool.client.spans import Span
from moonpool.kv import BlockKey
from moonpool.messages import Subjects, TenantId
from moonpool.messages.codec import encode
from moonpool.messages.segments import RegionGrant
from moonpool.messages.store import GetSlot, GetStartReply
from moonpool.transfer.base import TransferEngineProtocol, TransferRequest

SUBJECTS = Subjects("mp")
SIZE = 8 << 20
KEY = BlockKey(bytes(16))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.01)
    monkeypatch.setattr(node_calls, "SILENT_S", 0.05)


class Stuck:
    """A batch of which nothing ever arrives."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def __await__(self) -> Generator[Any, None, None]:
        yield from self.cancelled.wait().__await__()

    def cancel(self) -> None:
        self.cancelled.set()


class StuckTransfer:
    def __init__(self) -> None:
        self.batches: list[Stuck] = []

    def open(self, grant: RegionGrant) -> object:
        return object()

    def submit(self, requests: Sequence[TransferRequest], **given: object) -> Stuck:
        self.batches.append(Stuck())
        return self.batches[-1]


@asynccontextmanager
async def stopped_after_its_answer() -> AsyncIterator[tuple[BlockStore, StuckTransfer, list[str]]]:
    """A node that gives a lease and then answers nothing; what it was asked."""
    broker, asked = MemoryBroker(), list[str]()

    async def get_start(payload: bytes) -> bytes:
        asked.append("get_start")
        slot = GetSlot("hit", 0, SIZE, SIZE // 2, 1, bytes(16), "dram")
        grant = RegionGrant("s", "e", "h", [], 1, 0, SIZE, "r", bytes(16))
        return encode(GetStartReply(7, [slot], grant))

    async def get_end(payload: bytes) -> bytes:
        asked.append("get_end")
        await asyncio.Event().wait()
        return b""

    node, bus = MemoryBus(broker), MemoryBus(broker)
    endpoints = [
        Endpoint(verb, SUBJECTS.store("a", verb), handler)
        for verb, handler in (("get_start", get_start), ("get_end", get_end))
    ]
    await node.serve("store", "a", "1.0.0", endpoints)
    transfer = StuckTransfer()
    yield BlockStore(bus, cast(TransferEngineProtocol, transfer), SUBJECTS), transfer, asked


async def test_a_read_that_stands_still_ends_and_its_lease_is_not_asked_about() -> None:
    async with stopped_after_its_answer() as (blocks, transfer, asked):
        async with await blocks.open_get("a", TenantId("public"), [KEY]) as get:
            region = cast(Any, None)
            spans = [SpanRead(0, Span(0, SIZE, SIZE // 2), (region, 0), (region, SIZE))]
            with pytest.raises(RequestTimeout):
                await get.read_spans(spans)
            assert len(transfer.batches) > 1
            assert all(batch.cancelled.is_set() for batch in transfer.batches)
            assert not await get.release()  # what was read before counts no more either
        assert asked == ["get_start", "get_end"]  # the second one only to hear whether it is there


async def test_so_does_one_of_layers() -> None:
    async with stopped_after_its_answer() as (blocks, transfer, asked):
        async with await blocks.open_get("a", TenantId("public"), [KEY]) as get:
            with pytest.raises(RequestTimeout):
                await get.read_chunks(0, 1, {0: (cast(Any, None), 0)})
            assert all(batch.cancelled.is_set() for batch in transfer.batches)
            assert not await get.finish()
        assert asked == ["get_start", "get_end"]
