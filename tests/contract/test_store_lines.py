"""Values over lines: what comes is what was stored, and who may speak is the node's word."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from moonpool.bus import MemoryBroker
from moonpool.client import CorruptValue, StoreClient
from moonpool.clock import RealClock
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import TenantId
from moonpool.messages.codec import decode, encode
from moonpool.messages.keyed import (
    KeyedCall,
    KeyedGet,
    KeyedItem,
    KeyedPut,
    KeyedPutDone,
    LineReply,
    Said,
)
from moonpool.messages.store import GetStartRequest
from moonpool.transfer import TransferEngine
from moonpool.transfer.line_frames import LineFrame, pack_line
from moonpool.transfer.lines import Line
from moonpool.transfer.vectored import StreamBroken
from services.store.line_desk import CAPABILITY_S
from services.store.node import StoreNode
from tests.support.store_nodes import memory_client, memory_node
from tests.support.until import until

SIZES = [0, 1, 100, 16 << 10, 17_000, 65_536, 300_000, 1 << 20, (3 << 20) + 17]
MIB = 1 << 20


@asynccontextmanager
async def one_node(
    host_id: str = "elsewhere", lines: bool = True, **settings: Any
) -> AsyncIterator[tuple[StoreNode, StoreClient]]:
    """A node, and a client on another host or on the same ("here")."""
    broker = MemoryBroker()
    settings = {"dram_bytes": 64 << 20, "host_id": host_id, **settings}
    async with (
        memory_node(broker, "node-1", **settings) as node,
        memory_client(broker, "node-1", lines=lines) as client,
    ):
        yield node, client


def _bytes(seen: memoryview | None) -> bytes | None:
    return None if seen is None else bytes(seen)


def broken(client: StoreClient) -> int:
    return client.own_stats()["lines_broken"]


@pytest.mark.parametrize("host_id", ["elsewhere", "here"])
@pytest.mark.parametrize("lines", [True, False])
async def test_values_and_their_ranges_are_what_was_put(host_id: str, lines: bool) -> None:
    async with one_node(host_id, lines) as (node, client):
        values = {f"v{size}": os.urandom(size) for size in SIZES}
        assert set((await client.put_many(values)).values()) == {True}
        for name, value in values.items():
            assert await client.get(name) == value
            third, half = len(value) // 3, len(value) // 2
            assert await client.get_range(name, third, half) == value[third : third + half]
            assert await client.get_range(name, 1 if value else 0, 1) == value[1:2]
            assert not await client.put(name, b"other")
        found = await client.get_many([*values, "nowhere"])
        assert {name: result.value for name, result in found.items()} == {**values, "nowhere": None}
        changed = {name: os.urandom(len(value) // 2 + 1) for name, value in values.items()}
        assert set((await client.put_many(changed, replace=True)).values()) == {True}
        assert {n: r.value for n, r in (await client.get_many(changed)).items()} == changed
        assert (node.core.counters["line_frames"] > 0) is lines
        assert not broken(client)
        assert not node.core.puts_open
        await until(lambda: node.is_idle)
        node.core.check()


@pytest.mark.parametrize("host_id", ["elsewhere", "here"])
async def test_a_damaged_value_is_told_of_and_dropped(host_id: str) -> None:
    async with one_node(host_id) as (node, client):
        await client.put("a", os.urandom(MIB))
        place = node.core.residents.objects[client.key("a")].place
        node.region.view[place + 700_000] ^= 1
        with pytest.raises(CorruptValue):
            await client.get("a")
        assert await client.get("a") is None


@pytest.mark.parametrize("host_id", ["elsewhere", "here"])
async def test_a_view_is_the_value_itself_for_as_long_as_it_is_looked_at(host_id: str) -> None:
    async with one_node(host_id) as (node, client):
        for size in SIZES:
            value = os.urandom(size)
            await client.put("a", value, replace=True)
            async with client.view("a") as seen:
                assert _bytes(seen) == value
                await client.put("a", b"another", replace=True)
                assert _bytes(seen) == value
            async with client.view("a") as seen:
                assert _bytes(seen) == b"another"
        async with client.view("nowhere") as seen:
            assert seen is None
        await client.put("a", os.urandom(MIB), replace=True)
        node.region.view[node.core.residents.objects[client.key("a")].place + 9] ^= 1
        with pytest.raises(CorruptValue):
            async with client.view("a"):
                pass
        await until(lambda: node.is_idle)
        node.core.check()


async def test_many_at_a_time_share_few_lines() -> None:
    async with one_node() as (_, client):
        values = {f"v{n}": os.urandom(200_000 + n) for n in range(40)}
        assert all(await asyncio.gather(*(client.put(n, v) for n, v in values.items())))
        got = await asyncio.gather(*map(client.get, values))
        assert got == list(values.values())
        assert client.own_stats()["lines_open"] <= 8
        assert not broken(client)


async def test_a_cancelled_get_touches_its_memory_no_more() -> None:
    async with one_node() as (node, client):
        await client.put("a", os.urandom(8 * MIB))
        region = client.allocate(8 * MIB)
        for turns in range(1, 12):
            getting = asyncio.create_task(client.get_into("a", region))
            for _ in range(turns):
                await asyncio.sleep(0)
            getting.cancel()
            await asyncio.gather(getting, return_exceptions=True)
            region.view[:] = bytes(8 * MIB)
            await until(lambda: node.is_idle)
            assert not any(region.view)
        assert len(await client.get("a") or b"") == 8 * MIB
        await region.unregister()


async def test_a_cancelled_put_leaves_nothing_behind() -> None:
    async with one_node() as (node, client):
        await client.put("line", b"there is one")
        for turns in range(1, 12):
            putting = asyncio.create_task(client.put("a", os.urandom(8 * MIB)))
            for _ in range(turns):
                await asyncio.sleep(0)
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)
            await until(lambda: not node.core.puts_open)
            await client.remove("a")
        value = os.urandom(5 * MIB)
        assert await client.put("a", value)
        assert await client.get("a") == value
        node.core.check()


class Speaker:
    """Speaks on a line by hand."""

    def __init__(self, transfer: TransferEngine, client: StoreClient) -> None:
        self.transfer = transfer
        self.client = client

    async def capability(self, tenant: str = "public") -> LineReply:
        return await self.client.blocks.calls.line("node-1", TenantId(tenant), 5.0)

    async def line(self, given: LineReply, key: bytes = b"") -> Line:
        assert given.grant is not None
        line = await self.transfer.lines.open(given.grant, key or given.key)
        line.expecting = True
        return line

    async def ask(self, line: Line, kind: int, body: bytes, payload: bytes = b"") -> LineFrame:
        await line.send([*pack_line(kind, 1, body, len(payload)), payload], 5.0)
        return await line.next_frame(5.0)


@asynccontextmanager
async def a_speaker(**settings: Any) -> AsyncIterator[tuple[StoreNode, StoreClient, Speaker]]:
    async with one_node(**settings) as (node, client):
        transfer = client._kit.transfer
        assert isinstance(transfer, TransferEngine)
        yield node, client, Speaker(transfer, client)


async def test_only_a_capability_of_this_life_that_was_not_taken_back_is_heard() -> None:
    async with a_speaker() as (_, client, speaker):
        given = await speaker.capability()
        forged = await speaker.line(given, bytes(16))
        with pytest.raises(StreamBroken):
            await speaker.ask(forged, Said.GET, encode(KeyedGet(client.key("a"), 0)))
        line = await speaker.line(given)
        answer = await speaker.ask(line, Said.GET, encode(KeyedGet(client.key("a"), 0)))
        assert answer.kind == Said.DONE
        await client.wipe()  # of this tenant: who goes on must ask again
        with pytest.raises(StreamBroken):
            await speaker.ask(line, Said.GET, encode(KeyedGet(client.key("a"), 0)))
        late = await speaker.line(given)
        with pytest.raises(StreamBroken):
            await speaker.ask(late, Said.GET, encode(KeyedGet(client.key("a"), 0)))
        assert await client.put("a", b"again")


class Ahead(RealClock):
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


async def test_a_capability_ends_with_its_time_for_lines_open_and_new() -> None:
    clock = Ahead()
    async with a_speaker(clock=clock) as (node, client, speaker):
        ask = encode(KeyedGet(client.key("a"), 0))
        given = await speaker.capability()
        line, idle = await speaker.line(given), await speaker.line(given)
        clock.ahead_s = given.ttl_s - 5.0
        assert (await speaker.ask(line, Said.GET, ask)).kind == Said.DONE
        assert (await speaker.ask(await speaker.line(given), Said.GET, ask)).kind == Said.DONE
        younger = await speaker.capability()
        clock.ahead_s = given.ttl_s
        for each in (line, idle, await speaker.line(given)):
            with pytest.raises(StreamBroken):
                await speaker.ask(each, Said.GET, ask)
        assert node.core.counters["lines_refused"] == 1
        assert (await speaker.ask(await speaker.line(younger), Said.GET, ask)).kind == Said.DONE


async def test_reads_go_on_when_a_node_finds_a_capability_too_old() -> None:
    clock = Ahead()
    async with one_node(clock=clock) as (_, client):
        values = {f"v{n}": os.urandom(100_000) for n in range(3)}
        await client.put_many(values)
        for _ in range(3):
            for name, value in values.items():
                assert await client.get(name) == value
                assert await client.exists(name)
            clock.ahead_s += CAPABILITY_S
        assert broken(client) == 2  # the line of each time that was over
        assert client.own_stats()["lines_open"] == 1


async def test_a_client_asks_for_a_new_capability_before_the_old_one_ends() -> None:
    ours, theirs = Ahead(), Ahead()
    async with one_node(clock=theirs) as (node, client):
        client._kit.lines._now = ours.now
        value = os.urandom(100_000)
        await client.put("a", value)
        for _ in range(20):
            before = node.core.counters["line_frames"]
            assert await client.get("a") == value
            assert node.core.counters["line_frames"] > before  # never by way of the bus
            ours.ahead_s = theirs.ahead_s = ours.ahead_s + CAPABILITY_S / 12
        assert not broken(client)
        assert not node.core.counters["lines_refused"]


async def test_blocks_of_another_tenant_are_asked_for_on_the_bus() -> None:
    async with one_node() as (_, client):
        await client.put("name", b"x")
        key, other = client.key("name"), TenantId("other")
        assert await client.blocks.exist("node-1", client.tenant, [key]) == [True]
        lent = client.own_stats()["lines_lent"]
        assert await client.blocks.exist("node-1", other, [key]) == [True]  # keys name the content
        assert client.own_stats()["lines_lent"] == lent


async def test_a_line_speaks_for_its_own_tenant() -> None:
    async with a_speaker() as (node, client, speaker):
        line = await speaker.line(await speaker.capability("red"))
        request = encode(GetStartRequest(TenantId("blue"), b"", 0.0))
        answer = await speaker.ask(line, Said.CALL, encode(KeyedCall("get_start", raw(request))))
        assert answer.kind == Said.FAILED
        body = os.urandom(1000)
        answer = await put(speaker, line, b"k" * 16, body)
        assert decode(answer.body, KeyedPutDone).results == ["committed"]
        assert {obj.tenant for obj in node.core.residents.objects.values()} == {"red"}
        assert await client.remove("k") is False


def raw(data: bytes) -> msgspec.Raw:

    return msgspec.Raw(data)


async def put(
    speaker: Speaker, line: Line, key: bytes, body: bytes, sums: bytes | None = None
) -> LineFrame:
    sums = chunk_checksums(memoryview(body), len(body)) if sums is None else sums
    ask = encode(KeyedPut([KeyedItem(key, len(body), len(body))]))
    return await speaker.ask(line, Said.PUT, ask, body + sums)


@pytest.mark.parametrize("size_bytes", [1000, MIB])
async def test_bytes_that_differ_from_their_sums_are_not_stored(size_bytes: int) -> None:
    async with a_speaker() as (node, _, speaker):
        line = await speaker.line(await speaker.capability())
        for _ in range(2):
            answer = await put(speaker, line, b"k" * 16, os.urandom(size_bytes), bytes(8))
            assert decode(answer.body, KeyedPutDone).results == ["corrupt"]
        answer = await put(speaker, line, b"k" * 16, os.urandom(size_bytes))
        assert decode(answer.body, KeyedPutDone).results == ["committed"]
        answer = await put(speaker, line, b"k" * 16, os.urandom(size_bytes))
        assert decode(answer.body, KeyedPutDone).results == ["exists"]
        node.core.check()


async def test_garbage_ends_a_line_and_nothing_else() -> None:
    async with a_speaker() as (node, client, speaker):
        await client.put("a", os.urandom(100_000))
        given = await speaker.capability()
        item = KeyedItem(b"k" * 16, 1000, 1000)
        ends: list[tuple[int, bytes, int]] = [
            (99, b"", 0),
            (Said.DONE, b"", 0),
            (Said.GET, b"\xc1", 0),
            (Said.GET, encode(KeyedGet(b"k" * 16, 0)), 10),
            (Said.PUT, encode(KeyedPut([item])), 5),
            (Said.PUT, b"\x00", 5),
        ]
        for kind, body, payload_bytes in ends:
            line = await speaker.line(given)
            await line.send([*pack_line(kind, 1, body, payload_bytes), bytes(payload_bytes)], 5.0)
            with pytest.raises(StreamBroken):
                await line.next_frame(5.0)
        line = await speaker.line(given)
        line.sock.send(struct.pack("<QQQQ", 1, 2, 3, 4) * 4)
        with pytest.raises(StreamBroken):
            await line.next_frame(5.0)
        for strange in (
            KeyedGet(b"short", 0),
            KeyedGet(client.key("a"), 1 << 40, 0, 0, 0, [1, 2], [3]),
        ):
            line = await speaker.line(given)
            assert (await speaker.ask(line, Said.GET, encode(strange))).kind == Said.FAILED
        for size, chunk in ((0, 1), (10, 3), (1 << 40, 1 << 40)):
            line = await speaker.line(given)
            ask = encode(KeyedPut([KeyedItem(b"k" * 16, size, chunk)]))
            assert (await speaker.ask(line, Said.PUT, ask, b"xyz")).kind == Said.FAILED
        assert len(await client.get("a") or b"") == 100_000
        await until(lambda: node.is_idle)
        node.core.check()


async def test_a_put_that_stops_in_the_middle_is_locked_out_before_its_place_is_another_s() -> None:
    async with a_speaker(put_ttl_s=0.3) as (node, client, speaker):
        line = await speaker.line(await speaker.capability())
        body = bytes(4 * MIB)
        ask = encode(KeyedPut([KeyedItem(b"k" * 16, len(body), MIB)]))
        head = pack_line(Said.PUT, 1, ask, len(body) + 32)
        await line.send([*head, body[: 2 * MIB]], 5.0)
        await until(lambda: node.core.puts_open == 1)
        await until(lambda: not node.core.puts_open)
        await until(lambda: not node.core.stats().counters["late_puts"])
        with pytest.raises(StreamBroken):
            await line.next_frame(5.0)
        values = {f"v{n}": os.urandom(MIB) for n in range(20)}
        await client.put_many(values)
        assert {n: r.value for n, r in (await client.get_many(values)).items()} == values
        node.core.check()


async def test_a_node_that_was_started_anew_is_spoken_to_again() -> None:
    broker = MemoryBroker()
    async with memory_client(broker, "node-1") as client:
        for life in range(3):
            async with memory_node(broker, "node-1", dram_bytes=16 << 20, host_id="x") as node:
                await until(lambda: client.mesh.known() == ["node-1"])
                assert await client.get("a") is None
                assert await client.put("a", bytes([life]) * 100_000)
                assert await client.get("a") == bytes([life]) * 100_000
                assert not life or broken(client) >= 0
                assert node.core.residents.live == 1
