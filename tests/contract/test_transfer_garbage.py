"""Bytes that no correct peer sends: refused, counted, and never near the memory."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from moonpool.transfer import LocalRegion
from moonpool.transfer.checksums import SEAL_BYTES, seal_of
from moonpool.transfer.transports.shm_wire import Kind, Message
from moonpool.transfer.transports.tcp import split_address
from moonpool.transfer.wire import (
    FRAME_BYTES,
    FRAME_BYTES_MAX,
    HELLO_BYTES,
    RANGES_MAX,
    Frame,
    WireOp,
    pack_hello,
)
from tests.contract.transfer_wiring import Bytes, Pair, array, fill, make_pair, read
from tests.support.until import until

SIZE = 1 << 20


@dataclass
class Target:
    """A served region that must stay as it is."""

    pair: Pair
    region: LocalRegion
    content: Bytes

    @property
    def key(self) -> bytes:
        return next(iter(self.region.issued))

    def connect(self) -> socket.socket:
        endpoint = self.region.grant("r").endpoints[0]
        if endpoint.transport == "tcp":
            return socket.create_connection(split_address(endpoint.address), timeout=5.0)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(5.0)
        sock.connect(endpoint.address)
        return sock

    def greeted(self) -> socket.socket:
        sock = self.connect()
        sock.sendall(pack_hello(self.pair.far.epoch))
        assert len(sock.recv(HELLO_BYTES)) == HELLO_BYTES
        return sock

    def said_to(self, sock: socket.socket, *parts: bytes) -> bytes:
        """Sends, closes our half, returns all that the server had to say until it hung up."""
        with sock:
            with contextlib.suppress(OSError):
                for part in parts:
                    sock.sendall(part)
                sock.shutdown(socket.SHUT_WR)
            heard = b""
            with contextlib.suppress(ConnectionError):
                while part := sock.recv(1 << 16):
                    heard += part
            return heard

    def counted(self) -> float:
        stats = self.pair.far.stats()
        return stats.get("tcp.bad_frames", 0) + stats.get("shm.bad_frames", 0) + stats["refusals"]

    async def still_whole(self) -> None:
        """Memory is as it was, and a proper peer is served as ever."""
        assert np.array_equal(array(self.region), self.content)
        near = self.pair.near.allocate(SIZE)
        await self.pair.near.submit([read(near, self.pair.near.open(self.region.grant("r")), SIZE)])
        assert np.array_equal(array(near), self.content)
        await near.unregister()


@contextlib.asynccontextmanager
async def make_target(wiring: str, folder: Path) -> AsyncIterator[Target]:
    async with make_pair(wiring, folder) as pair:
        region = pair.far.allocate(SIZE)
        content = fill(region, 1)
        region.grant("rw")  # the key that the frames below carry
        yield Target(pair, region, content)


@pytest.fixture
async def tcp(tmp_path: Path) -> AsyncIterator[Target]:
    async with make_target("tcp4", tmp_path) as made:
        yield made


@pytest.fixture
async def shm(tmp_path: Path) -> AsyncIterator[Target]:
    async with make_target("shm", tmp_path) as made:
        yield made


async def on_thread(what: Callable[[], object]) -> None:
    await asyncio.to_thread(what)


def head(
    target: Target,
    payload: int,
    first: tuple[int, int],
    *,
    count: int = 1,
    region: int = 0,
    key: bytes = b"",
    op: WireOp = WireOp.WRITE,
    sealed: bool = False,
) -> bytes:
    """The head of a frame, right but for what is given."""
    region, key = region or target.region.id, key or target.key
    return Frame(op, count, 7, region, payload, key, *first, sealed).pack()


async def test_a_write_cut_off_in_its_payload_is_counted_and_not_confirmed(tcp: Target) -> None:
    heard: list[bytes] = []
    parts = [head(tcp, 100, (0, 100)), tcp.content[:99].tobytes()]
    await on_thread(lambda: heard.append(tcp.said_to(tcp.greeted(), *parts)))
    assert heard == [b""]
    await until(lambda: tcp.counted() == 1)
    await tcp.still_whole()


async def test_a_peer_that_stalls_in_a_frame_is_dropped(
    tcp: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.tcp_owner.STALL_S", 0.2)
    sock = await asyncio.to_thread(tcp.greeted)
    with sock:
        sock.sendall(head(tcp, 100, (0, 100)))
        assert await asyncio.to_thread(sock.recv, 10) == b""
    assert tcp.counted() == 1
    await tcp.still_whole()


async def test_a_reader_that_takes_nothing_is_dropped(
    tcp: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.tcp_owner.STALL_S", 0.2)
    sock = await asyncio.to_thread(tcp.greeted)
    with sock:
        ask = head(tcp, SIZE, (0, SIZE), op=WireOp.READ)
        for _ in range(64):
            sock.sendall(ask)
        await until(lambda: tcp.pair.far.stats()["tcp.streams_served"] == 0)
    await tcp.still_whole()


async def test_a_flood_of_connections_is_bounded(
    tcp: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.tcp_guests.STREAMS_MAX", 4)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(await asyncio.to_thread(tcp.connect))
        await until(lambda: tcp.pair.far.stats()["tcp.streams_ended_for_room"] == 16)
        assert tcp.pair.far.stats()["tcp.streams_served"] == 4
    await until(lambda: tcp.pair.far.stats()["tcp.streams_served"] == 0)
    await tcp.still_whole()


def fuzz_stream(target: Target, data: st.DataObject) -> None:
    """A proper write of what is there already, with some bytes changed."""
    length = data.draw(st.integers(1, 2000))
    at = data.draw(st.integers(0, SIZE - length))
    body = target.content[at : at + length].tobytes()
    good = head(target, length, (at, length))
    bad = bytearray(good)
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(bad) - 1), st.integers(0, 255)), min_size=1)
    ):
        bad[place] = value
    elsewhere = slice(FRAME_BYTES - 16, FRAME_BYTES - 8)  # where the first range's offset lies
    if bad[elsewhere] != good[elsewhere]:
        return  # may well be a proper frame for another place: it would be right to write there
    cut = data.draw(st.integers(0, len(bad) + length))
    target.said_to(target.greeted(), (bytes(bad) + body)[:cut])


def fuzz_sealed_stream(target: Target, data: st.DataObject) -> None:
    """A proper sealed write of *other* bytes than are there, with some changed on the way: not even
    a damaged offset may let one of them in. Its seals stay as they were."""
    length = data.draw(st.integers(1, 2000))
    at = data.draw(st.integers(0, SIZE - length))
    good = head(target, length, (at, length), sealed=True)
    whole = good + seal_of(good) + b"other" * 400
    bad = bytearray(whole[: len(good) + SEAL_BYTES])
    places = st.tuples(st.integers(0, len(bad) - 1), st.integers(1, 255))
    for place, change in data.draw(st.lists(places, min_size=1, max_size=4)):
        bad[place] ^= change
    if bytes(bad) == whole[: len(bad)]:
        return  # two changes undid each other
    cut = data.draw(st.integers(0, len(whole)))
    target.said_to(target.greeted(), (bytes(bad) + whole[len(bad) :])[:cut])


async def _fuzz(target: Target, one: Callable[[Target, st.DataObject], None], count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        one(target, data)
        assert np.array_equal(array(target.region), target.content)

    await asyncio.to_thread(check)
    await target.still_whole()


async def test_random_damage_to_frames_changes_nothing(tcp: Target) -> None:
    await _fuzz(tcp, fuzz_stream, 60)


async def test_random_damage_to_sealed_frames_lets_no_byte_in(tcp: Target) -> None:
    await _fuzz(tcp, fuzz_sealed_stream, 60)


@pytest.mark.slow
async def test_much_random_damage_to_sealed_frames_lets_no_byte_in(tcp: Target) -> None:
    await _fuzz(tcp, fuzz_sealed_stream, 1000)


@pytest.mark.slow
async def test_much_random_damage_to_frames_changes_nothing(tcp: Target) -> None:
    await _fuzz(tcp, fuzz_stream, 3000)


async def test_descriptors_pushed_at_the_owner_do_not_pile_up(shm: Target) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def talk() -> None:
        sock = shm.greeted()
        good = Message(Kind.ATTACH, shm.region.id, shm.key, 0, 10).pack()
        socket.send_fds(sock, [good], [0, 1, 2])
        with sock:
            _, fds, _, _ = socket.recv_fds(sock, 128, 1)
            for fd in fds:
                socket.close(fd)

    await on_thread(talk)
    await until(lambda: shm.pair.far.stats()["shm.peers_served"] == 0)
    assert len(os.listdir("/proc/self/fd")) == before
    await shm.still_whole()


def fuzz_packet(target: Target, data: st.DataObject) -> None:
    packets = data.draw(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4))
    good = bytearray(Message(Kind.ATTACH, target.region.id, target.key, 0, 10).pack())
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=3)):
        good[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(OSError):
        target.said_to(target.greeted(), bytes(good), *packets)


async def test_random_packets_on_the_handshake_socket_change_nothing(shm: Target) -> None:
    await _fuzz(shm, fuzz_packet, 60)


@pytest.mark.slow
async def test_many_random_packets_on_the_handshake_socket_change_nothing(shm: Target) -> None:
    await _fuzz(shm, fuzz_packet, 3000)


@settings(max_examples=200, deadline=None)
@example(bytes(FRAME_BYTES))
@given(st.binary(min_size=FRAME_BYTES, max_size=FRAME_BYTES))
def test_any_bytes_either_parse_within_bounds_or_are_a_bad_frame(data: bytes) -> None:
    from moonpool.transfer.wire import BadFrame, unpack_frame

    with contextlib.suppress(BadFrame):
        parsed = unpack_frame(data)
        assert 0 < parsed.ranges <= RANGES_MAX
        assert 0 < parsed.payload <= FRAME_BYTES_MAX
