"""Peers that know an owner's epoch and hold no capability: they take nobody's place."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.transfer.errors import PeerLost
from moonpool.transfer.lines import Line
from moonpool.transfer.transports import tcp_guests
from moonpool.transfer.transports.fences import naming, new_name
from moonpool.transfer.transports.tcp import split_address
from moonpool.transfer.wire import HELLO_BYTES, pack_hello
from tests.contract.transfer_wiring import Pair, array, fill, make_pair, read
from tests.support.until import until

SIZE = 64 << 10
ROOM = 4


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("tcp4", tmp_path) as made:
        yield made


def greeted(pair: Pair, *words: bytes) -> socket.socket:
    sock = socket.create_connection(split_address(pair.far.endpoints[0].address), timeout=5.0)
    sock.sendall(pack_hello(pair.far.epoch))
    assert len(sock.recv(HELLO_BYTES)) == HELLO_BYTES
    for word in words:
        sock.sendall(word)
    return sock


async def read_all(pair: Pair) -> None:
    far, mine = pair.far.allocate(SIZE), pair.near.allocate(SIZE)
    sent = fill(far, 3)
    await pair.near.submit([read(mine, pair.near.open(far.grant("r")), SIZE)], deadline_s=5.0)
    assert np.array_equal(array(mine), sent)


def streams(pair: Pair) -> float:
    return pair.far.stats()["tcp.streams_served"]


async def test_streams_that_greet_and_say_nothing_more_are_ended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_guests, "HELLO_S", 0.5)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(await asyncio.to_thread(greeted, pair)) for _ in range(8)]
        for sock in socks:
            assert await asyncio.to_thread(sock.recv, 1) == b""
        await until(lambda: pair.far.stats().get("tcp.streams_late", 0) == 8)
        assert streams(pair) == 0
    await read_all(pair)


async def test_a_stream_that_drips_its_greeting_has_no_longer_than_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_guests, "HELLO_S", 0.5)
    address = split_address(pair.far.endpoints[0].address)

    def drip() -> int:
        """Bytes that went out before it was ended."""
        with socket.create_connection(address, timeout=0.05) as sock:
            for sent, byte in enumerate(pack_hello(pair.far.epoch)[: HELLO_BYTES - 1]):
                sock.send(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    assert sock.recv(1) == b""
                    return sent
        return HELLO_BYTES

    assert await asyncio.to_thread(drip) < HELLO_BYTES - 1


@pytest.mark.parametrize("words", [(), ("name",)])
async def test_strangers_that_fill_all_the_room_make_room_for_a_proper_peer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tcp_guests, "STREAMS_MAX", ROOM)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * ROOM):
            said = [naming(new_name()) for _ in words]
            stack.enter_context(await asyncio.to_thread(greeted, pair, *said))
        assert streams(pair) == ROOM
        await read_all(pair)
        assert pair.near.stats().get("retries", 0) == 0
        for _ in range(3 * ROOM):
            stack.enter_context(await asyncio.to_thread(greeted, pair))
        await read_all(pair)
        assert streams(pair) <= ROOM
        assert pair.near.stats().get("retries", 0) == 0  # it kept its place
        assert pair.far.stats()["tcp.streams_ended_for_room"] >= 2 * ROOM


async def test_who_finds_no_room_hears_so(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_guests, "STREAMS_MAX", 0)
    for _ in range(10):
        with pytest.raises(PeerLost, match="takes no more streams"):
            await read_all(pair)
    assert pair.far.stats()["tcp.streams_refused"] >= 10


async def test_an_idle_line_and_an_idle_proper_peer_stay(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Line] = []
    pair.far.lines.serve(lambda line, _: taken.append(line))
    line = await pair.near.lines.open(pair.far.allocate(SIZE).grant("r"), bytes(16))
    await until(lambda: len(taken) == 1)
    await read_all(pair)
    monkeypatch.setattr(tcp_guests, "HELLO_S", 0.5)
    monkeypatch.setattr(tcp_guests, "PROOF_S", 0.5)
    monkeypatch.setattr(tcp_guests, "STREAMS_MAX", ROOM)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(await asyncio.to_thread(greeted, pair)) for _ in range(8)]
        for sock in socks:
            assert await asyncio.to_thread(sock.recv, 1) == b""
    await read_all(pair)
    assert pair.near.stats().get("retries", 0) == 0
    assert not taken[0].closed
    assert not line.closed
