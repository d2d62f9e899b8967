"""Questions to nodes that are busy, silent, gone, or cannot be reached from here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from moonpool.bus import Endpoint, Handler, MemoryBroker, MemoryBus, NoResponder, RequestTimeout
from moonpool.client import node_calls, watch
from moonpool.client.node_calls import NodeCalls
from moonpool.messages import Subjects, TenantId
from moonpool.messages.codec import encode
from moonpool.messages.store import GetEndReply, GetStartReply

SUBJECTS = Subjects("mp")
TIMEOUT_S = 30.0
TENANT = TenantId("public")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.01)
    monkeypatch.setattr(watch, "AGAIN_S", 0.01)
    monkeypatch.setattr(node_calls, "SILENT_S", 0.1)


async def never(payload: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


async def at_once(payload: bytes) -> bytes:
    return encode(GetEndReply(False))


async def late(payload: bytes) -> bytes:
    """After longer than a silent node is given: as one that loads from a lower tier."""
    await asyncio.sleep(0.3)
    return encode(GetStartReply(0, []))


class CutOff(MemoryBus):
    """A bus that has lost its connection, and waits for it."""

    @property
    def is_connected(self) -> bool:
        return False


@asynccontextmanager
async def calls_to(
    get_start: Handler, get_end: Handler, bus_kind: type[MemoryBus] = MemoryBus
) -> AsyncIterator[NodeCalls]:
    """To node-1, which takes one question of each kind at a time."""
    broker = MemoryBroker()
    node, bus = MemoryBus(broker), bus_kind(broker)
    service = await node.serve(
        "store",
        "node-1",
        "1.0.0",
        [
            Endpoint(verb, SUBJECTS.store("node-1", verb), handler, concurrency_max=1)
            for verb, handler in (("get_start", get_start), ("get_end", get_end))
        ],
    )
    yield NodeCalls(bus, SUBJECTS, TIMEOUT_S)
    closing = asyncio.create_task(service.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await bus.close()


async def test_a_busy_node_is_waited_for_however_many_questions_wait_there() -> None:
    async with calls_to(late, at_once) as calls:
        asking = [calls.get_start("node-1", TENANT, [], 1.0) for _ in range(3)]
        assert [reply.slots for reply in await asyncio.gather(*asking)] == [[], [], []]


async def test_a_silent_node_is_given_up_long_before_its_time_is_over() -> None:
    async with calls_to(never, never) as calls:
        with pytest.raises(RequestTimeout) as caught:
            await calls.get_start("node-1", TENANT, [], 1.0)
        assert caught.value.timeout_s < TIMEOUT_S
        with pytest.raises(RequestTimeout):
            await calls.probe("node-1")
        with pytest.raises(NoResponder):
            await calls.probe("node-2")


async def test_nobody_is_found_silent_while_our_own_bus_is_cut_off() -> None:
    async with calls_to(late, never, CutOff) as calls:
        await calls.probe("node-1")
        assert (await calls.get_start("node-1", TENANT, [], 1.0)).slots == []
