"""Bytes that come late: a stream was given up, memory holds something newer, and then the network
delivers what had been on its way."""

import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import TransferCancelled
from moonpool.transfer.transports.fences import Fences, fencing, naming, new_name
from moonpool.transfer.transports.tcp import split_address
from moonpool.transfer.wire import HELLO_BYTES, pack_hello
from tests.contract.transfer_wiring import Pair, array, fill, make_pair, write
from tests.support.holding_wire import HoldingWire
from tests.support.until import until

MIB = 1 << 20
SIZE = 4 * MIB


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("tcp4", tmp_path) as made:
        yield made


def by_way_of(grant: RegionGrant, wire: HoldingWire) -> RegionGrant:
    endpoint = Endpoint("tcp", f"127.0.0.1:{wire.port}")
    return msgspec.structs.replace(grant, endpoints=[endpoint])


@pytest.mark.parametrize("size", [SIZE, 200_000])
async def test_what_a_stream_that_was_given_up_had_on_its_way_never_lands(
    pair: Pair, size: int
) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    grant = far.grant("rw")
    async with HoldingWire(split_address(grant.endpoints[0].address), 20_000) as wire:
        wire.holding = True
        fill(near, 1)
        there = pair.near.open(by_way_of(grant, wire))
        batch = pair.near.submit([write(near, there, size)])
        await until(lambda: wire.kept_bytes >= size - 20_000 or wire.kept_bytes >= MIB)
        batch.cancel()
        with pytest.raises(TransferCancelled):
            await batch
        wire.holding = False
        array(near)[:] = 7
        await pair.near.submit([write(near, there, SIZE)])
        wire.let_go()
        await until(lambda: wire.delivered)
        await until(lambda: pair.far.stats()["tcp.streams_served"] <= 2)
        assert np.all(array(far) == 7)
        assert pair.far.stats()["tcp.fences"] == 1


async def test_an_owner_is_told_once(pair: Pair) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    grant = far.grant("rw")
    async with HoldingWire(split_address(grant.endpoints[0].address), 20_000) as wire:
        wire.holding = True
        there = pair.near.open(by_way_of(grant, wire))
        batch = pair.near.submit([write(near, there, SIZE)])
        await until(lambda: wire.kept_bytes > 0)
        batch.cancel()
        with pytest.raises(TransferCancelled):
            await batch
        wire.holding = False
        for _ in range(5):
            await pair.near.submit([write(near, there, SIZE)])
        assert pair.far.stats()["tcp.fences"] == 1


def connected(pair: Pair) -> socket.socket:
    grant = pair.far.allocate(MIB).grant("rw")
    sock = socket.create_connection(split_address(grant.endpoints[0].address), timeout=10.0)
    sock.sendall(pack_hello(grant.epoch))
    assert len(sock.recv(HELLO_BYTES, socket.MSG_WAITALL)) == HELLO_BYTES
    return sock


async def test_a_stream_that_was_given_up_before_it_said_its_name_is_not_served(
    pair: Pair,
) -> None:
    old = new_name()
    with connected(pair) as teller, connected(pair) as late:
        teller.sendall(naming(new_name()) + fencing([old]))
        await until(lambda: pair.far.stats().get("tcp.fences") == 1)
        late.sendall(naming(old))
        await until(lambda: pair.far.stats()["tcp.streams_served"] == 1)
        assert late.recv(1) == b""


async def test_what_was_given_up_on_another_transport_is_ended_by_the_same_word(
    pair: Pair,
) -> None:
    """A link of rdma, say: whatever it is, it stands in the same table."""
    fences: Fences = pair.far._transports["tcp"]._around.fences  # type: ignore[attr-defined]
    link, cut = new_name(), threading.Event()
    assert fences.enter(link, cut.set)
    with connected(pair) as teller:
        teller.sendall(naming(new_name()) + fencing([link]))
        await until(cut.is_set)
        assert pair.far.stats().get("tcp.fences") is None  # it may still touch memory
        fences.leave(link)
        await until(lambda: pair.far.stats().get("tcp.fences") == 1)


async def test_noise_is_not_taken_for_a_name(pair: Pair) -> None:
    with connected(pair) as sock:
        sock.sendall(naming(new_name())[:-40] + bytes(40))
        await until(lambda: pair.far.stats().get("tcp.bad_frames") == 1)
        assert pair.far.stats().get("tcp.fences") is None
