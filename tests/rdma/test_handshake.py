"""Bytes on the handshake socket that no correct peer sends: refused, counted, and no queue pair."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.transfer import LocalRegion
from moonpool.transfer.transports.rdma_wire import (
    Ask,
    Connect,
    Connected,
    End,
    Granted,
    Message,
    QueueEnd,
    Withdrawn,
    pack,
    unpack,
)
from moonpool.transfer.transports.tcp import split_address
from moonpool.transfer.wire import HELLO_BYTES, Status, pack_hello
from tests.contract.transfer_wiring import Bytes, Pair, array, fill, make_pair, read
from tests.support.until import until

SIZE = 1 << 16
END = End(gid="::ffff:10.77.0.1", lid=0, mtu=5, reads_max=16, queues=[QueueEnd(1000, 1)] * 2)


@dataclass
class Target:
    pair: Pair
    region: LocalRegion
    content: Bytes

    @property
    def ask(self) -> Ask:
        return Ask(self.region.id, next(iter(self.region.issued)), 0, SIZE)

    def connect(self) -> socket.socket:
        address = self.region.grant("r").endpoints[0].address.rpartition("/")[0]
        return socket.create_connection(split_address(address), timeout=20.0)

    def greeted(self) -> socket.socket:
        sock = self.connect()
        sock.sendall(pack_hello(self.pair.far.epoch))
        assert len(sock.recv(HELLO_BYTES)) == HELLO_BYTES
        return sock

    def said_to(self, sock: socket.socket, *parts: bytes) -> bytes:
        """All that the owner has to say until it hangs up."""
        with sock:
            heard = b""
            with contextlib.suppress(OSError):
                for part in parts:
                    sock.sendall(part)
                sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(1 << 16):
                    heard += part
            return heard

    def counted(self) -> float:
        stats = self.pair.far.stats()
        return stats.get("rdma.bad_frames", 0) + stats["refusals"]

    async def still_whole(self) -> None:
        assert np.array_equal(array(self.region), self.content)
        near = self.pair.near.allocate(SIZE)
        await self.pair.near.submit([read(near, self.pair.near.open(self.region.grant("r")), SIZE)])
        assert np.array_equal(array(near), self.content)


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    async with make_pair("rdma", tmp_path) as pair:
        region = pair.far.allocate(SIZE)
        content = fill(region, 1)
        region.grant("rw")
        yield Target(pair, region, content)


async def hear(target: Target, *parts: bytes) -> Message | None:
    def talk() -> bytes:
        return target.said_to(target.greeted(), *parts)

    return unpack(bytearray(await asyncio.to_thread(talk)))


@pytest.mark.parametrize("first", [b"hi", b"\0" * 60, pack_hello("")[:-1]])
async def test_a_stranger_is_hung_up_on(target: Target, first: bytes) -> None:
    await asyncio.to_thread(lambda: target.said_to(target.connect(), first))
    await until(lambda: target.counted() == 1)
    await target.still_whole()


BAD_STARTS: dict[str, Callable[[Target], bytes]] = {
    "endless": lambda t: b"\xff" * 64,
    "empty": lambda t: bytes(8),
    "no message": lambda t: (5).to_bytes(4, "little") + b"xxxxx",
    "cut off": lambda t: pack(Connect(t.ask, "rxe1", END))[:-1],
    "an ask without queue pairs": lambda t: pack(t.ask),
    "an owner's word": lambda t: pack(Withdrawn(1, b"")),
    "another owner's word": lambda t: pack(Connected(END, Granted(t.ask, 0))),
}


@pytest.mark.parametrize("what", BAD_STARTS)
async def test_a_start_that_is_none_is_counted_and_ends(target: Target, what: str) -> None:
    assert await hear(target, BAD_STARTS[what](target)) is None
    await until(lambda: target.counted() == 1)
    await target.still_whole()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"key": bytes(16)}, Status.UNKNOWN),
        ({"region": 77}, Status.UNKNOWN),
        ({"length": SIZE + 1}, Status.BOUNDS),
        ({"offset": 1}, Status.BOUNDS),
        ({"offset": (1 << 63) - 1}, Status.BOUNDS),
    ],
)
async def test_without_a_valid_grant_there_is_no_queue_pair(
    target: Target, change: dict[str, object], status: Status
) -> None:
    ask = msgspec.structs.replace(target.ask, **change)
    heard = await hear(target, pack(Connect(ask, "rxe1", END)))
    assert heard == Granted(ask, status)
    assert target.counted() == 1
    assert target.pair.far.stats()["rdma.grants_exposed"] == 0
    await target.still_whole()


@pytest.mark.parametrize(
    ("device", "end"),
    [
        ("rxe7", END),
        ("rxe1", msgspec.structs.replace(END, gid="no address")),
        ("rxe1", msgspec.structs.replace(END, gid="")),
        ("rxe1", msgspec.structs.replace(END, gid="::ffff:192.0.2.1")),
    ],
)
async def test_ends_that_cannot_be_reached_are_refused_or_lead_nowhere(
    target: Target, device: str, end: End
) -> None:
    heard = await hear(target, pack(Connect(target.ask, device, end)))
    assert isinstance(heard, Granted | Connected)
    await until(lambda: target.pair.far.stats()["rdma.peers_served"] == 0)
    assert target.pair.far.stats()["rdma.grants_exposed"] == 0
    await target.still_whole()


async def test_garbage_after_a_good_start_takes_everything_back(target: Target) -> None:
    heard = await hear(target, pack(Connect(target.ask, "rxe1", END)), b"\xff" * 64)
    assert isinstance(heard, Connected)
    await until(lambda: target.counted() == 1)
    await until(lambda: target.pair.far.stats()["rdma.grants_exposed"] == 0)
    await target.still_whole()


async def test_a_peer_that_says_nothing_is_dropped(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.rdma_owner.HANDSHAKE_S", 0.2)
    for start in (target.connect, target.greeted):
        with await asyncio.to_thread(start) as sock:
            assert await asyncio.to_thread(sock.recv, 10) == b""
    assert target.counted() == 2


async def test_a_flood_of_peers_is_bounded(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.rdma_owner.PEERS_MAX", 4)
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(await asyncio.to_thread(target.connect))
        await until(lambda: target.pair.far.stats().get("rdma.peers_refused", 0) == 8)
        assert target.pair.far.stats()["rdma.peers_served"] == 4
    await until(lambda: target.pair.far.stats()["rdma.peers_served"] == 0)
    await target.still_whole()


async def test_random_damage_changes_nothing(target: Target) -> None:
    good = pack(Connect(target.ask, "rxe1", END))

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        parts = bytearray(good)
        places = st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=6)
        for place in data.draw(places):
            parts[place] = data.draw(st.integers(0, 255))
        said = bytes(parts[: data.draw(st.integers(1, len(parts)))])
        target.said_to(target.greeted(), said)
        assert np.array_equal(array(target.region), target.content)

    await asyncio.to_thread(check)
    await until(lambda: target.pair.far.stats()["rdma.peers_served"] == 0)
    await target.still_whole()
