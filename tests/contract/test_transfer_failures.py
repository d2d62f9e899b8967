"""Peers that die, stop, restart or never answer: a typed error by the deadline, and nobody else
notices."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import (
    GrantRefused,
    PeerLost,
    RegionClosed,
    TransferEngine,
    TransferTimeout,
)
from tests.contract.transfer_wiring import (
    ACROSS,
    HOSTS,
    PATIENCE,
    array,
    fill,
    make_child,
    make_pair,
    read,
    start_engine,
    write,
)
from tests.support.until import until

MIB = 1 << 20


@pytest.fixture(params=ACROSS)
def wiring(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def near(wiring: str, tmp_path: Path) -> AsyncIterator[TransferEngine]:
    engine = await start_engine("near", wiring, tmp_path)
    yield engine
    await engine.close()


async def test_bytes_cross_a_process_border_both_ways(
    near: TransferEngine, wiring: str, tmp_path: Path
) -> None:
    import xxhash

    async with make_child(wiring, tmp_path, length=20 * MIB) as child:
        local = near.allocate(20 * MIB)
        remote = near.open(child.grant)
        await child.ask("fill 3")
        await near.submit([read(local, remote, 20 * MIB)])
        assert xxhash.xxh3_64_hexdigest(local.view) == await child.ask("sum")
        fill(local, 4)
        await near.submit([write(local, remote, 20 * MIB)])
        assert xxhash.xxh3_64_hexdigest(local.view) == await child.ask("sum")


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_peer_killed_in_the_middle_is_lost_within_moments(
    near: TransferEngine, wiring: str, tmp_path: Path, kind: str
) -> None:
    async with make_child(wiring, tmp_path) as child:
        size = child.grant.length
        local, remote = near.allocate(size), near.open(child.grant)
        ask = read if kind == "read" else write
        await near.submit([ask(local, remote, MIB)])
        batches = [near.submit([ask(local, remote, size)]) for _ in range(20)]
        await asyncio.sleep(0)
        child.signal(signal.SIGKILL)
        started_s = time.monotonic()
        ends = [await _end(batch) for batch in batches]
        assert time.monotonic() - started_s < 3.0 * PATIENCE
        assert isinstance(ends[-1], PeerLost)
        with pytest.raises(PeerLost):
            await near.submit([ask(local, remote, 10)])
    assert near.stats()["slices_under_way"] == 0


async def _end(batch) -> Exception | None:  # type: ignore[no-untyped-def]
    try:
        await batch
    except Exception as error:  # noqa: BLE001  what it is, is what the tests look at
        return error
    return None


async def test_stale_bytes_of_a_dead_process_are_never_a_success(
    near: TransferEngine, wiring: str, tmp_path: Path
) -> None:
    async with make_child(wiring, tmp_path, length=MIB) as child:
        local, remote = near.allocate(MIB), near.open(child.grant)
        await near.submit([read(local, remote, 4096)])
        await child.kill()
        with pytest.raises(PeerLost):
            await near.submit([read(local, remote, 4096)])


async def test_a_stopped_peer_costs_its_deadline_and_no_more(wiring: str, tmp_path: Path) -> None:
    """Before anything is attached or connected; and what it does after it wakes is harmless."""
    async with make_child(wiring, tmp_path, length=MIB) as child:
        near = await start_engine("near", wiring, tmp_path)
        try:
            local, remote = near.allocate(MIB), near.open(child.grant)
            child.signal(signal.SIGSTOP)
            started_s = time.monotonic()
            with pytest.raises(TransferTimeout):
                await near.submit([read(local, remote, MIB)], deadline_s=0.4)
            assert 0.35 < time.monotonic() - started_s < 1.5 * PATIENCE
            child.signal(signal.SIGCONT)
            await near.submit([read(local, remote, MIB)])
        finally:
            await near.close()


@pytest.mark.parametrize("wiring", ["tcp4"])
async def test_a_peer_that_stops_in_the_middle_is_cut_at_the_deadline(
    near: TransferEngine, wiring: str, tmp_path: Path
) -> None:
    async with make_child(wiring, tmp_path) as child:
        size = child.grant.length
        local, remote = near.allocate(size), near.open(child.grant)
        await near.submit([write(local, remote, MIB)])
        child.signal(signal.SIGSTOP)
        for ask in (write, read):
            batch = near.submit([ask(local, remote, size)], deadline_s=0.4)
            with pytest.raises(TransferTimeout):
                await batch
            assert batch.done
        child.signal(signal.SIGCONT)
        await child.ask("fill 5")
        await near.submit([read(local, remote, size)])


async def test_one_dead_peer_does_not_slow_the_others(
    near: TransferEngine, wiring: str, tmp_path: Path
) -> None:
    async with (
        make_child(wiring, tmp_path, length=MIB) as well,
        make_child(wiring, tmp_path, name="sick", length=MIB) as sick,
    ):
        local, target = near.allocate(MIB), near.open(well.grant)
        await near.submit([read(local, target, MIB)])
        sick.signal(signal.SIGSTOP)
        hopeless = near.open(sick.grant)
        stuck = [
            near.submit([read(local, hopeless, MIB)], deadline_s=2.0 * PATIENCE) for _ in range(50)
        ]
        started_s = time.monotonic()
        for _ in range(50):
            await near.submit([read(local, target, MIB)])
        assert time.monotonic() - started_s < 1.0 * PATIENCE
        assert not any(batch.done for batch in stuck)
        for batch in stuck:
            batch.cancel()
        for batch in stuck:
            await batch.settled()


async def test_a_peer_that_restarts_is_reached_again_with_a_new_grant(
    near: TransferEngine, wiring: str, tmp_path: Path
) -> None:
    local = near.allocate(MIB)
    async with make_child(wiring, tmp_path, length=MIB) as child:
        old = near.open(child.grant)
        await near.submit([read(local, old, MIB)])
        child.signal(signal.SIGKILL)
    async with make_child(wiring, tmp_path, length=MIB) as child:
        await near.submit([read(local, near.open(child.grant), MIB)])
        with pytest.raises((PeerLost, GrantRefused)):
            await near.submit([read(local, old, MIB)])


async def test_a_dead_shm_socket_falls_back_to_tcp(tmp_path: Path) -> None:
    near = await TransferEngine.start("near", host_id="here", run_dir=tmp_path)
    far = await TransferEngine.start("far", host_id="here", run_dir=tmp_path)
    try:
        local, theirs = near.allocate(MIB), far.allocate(MIB)
        sent = fill(theirs, 6)
        (tmp_path / "far.transfer").unlink()
        await near.submit([read(local, near.open(theirs.grant("r")), MIB)])
        assert np.array_equal(array(local), sent)
        stats = near.stats()
        assert stats["tcp.read.bytes"] == MIB
        assert stats["retries"] > 0
    finally:
        await near.close()
        await far.close()


@contextlib.contextmanager
def silent_listener(host: str) -> Iterator[str]:
    """Accepts (the kernel does) and never says a word."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as sock:
        port = sock.getsockname()[1]
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@pytest.mark.parametrize("wiring", ["tcp4", "tcp6"])
async def test_a_listener_that_never_answers_costs_the_deadline(
    near: TransferEngine, wiring: str
) -> None:
    local = near.allocate(MIB)
    with silent_listener(HOSTS[wiring]) as address:
        grant = _grant_at(address)
        started_s = time.monotonic()
        with pytest.raises(TransferTimeout):
            await near.submit([read(local, near.open(grant), MIB)], deadline_s=0.3)
        assert time.monotonic() - started_s < 1.0


def _grant_at(address: str) -> RegionGrant:
    return RegionGrant(
        segment="ghost",
        epoch="0123456789abcdef",
        host_id="here",
        endpoints=[Endpoint("tcp", address)],
        region=1,
        offset=0,
        length=MIB,
        rights="rw",
        key=bytes(16),
    )


@pytest.mark.parametrize("wiring", ["tcp4"])
async def test_nobody_at_the_address_is_known_at_once(near: TransferEngine, wiring: str) -> None:
    with silent_listener("127.0.0.1") as address:
        pass
    local = near.allocate(MIB)
    with pytest.raises(PeerLost):
        await near.submit([read(local, near.open(_grant_at(address)), MIB)])


class Flaky:
    """A tcp proxy that drops its first `bad` connections after `limit` bytes from the peer."""

    def __init__(self, target: str, bad: int, limit: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._bad = bad
        self._limit = limit
        self.address = ""

    async def __aenter__(self) -> "Flaky":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._bad -= 1
        left = self._limit if self._bad >= 0 else 1 << 62
        up_reader, up_writer = await asyncio.open_connection(*self._target)

        async def upward() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    up_writer.write(data)
                    await up_writer.drain()
            up_writer.close()

        task = asyncio.create_task(upward())
        with contextlib.suppress(OSError):
            while left > 0 and (data := await up_reader.read(min(left, 1 << 16))):
                writer.write(data)
                await writer.drain()
                left -= len(data)
        writer.transport.abort()
        up_writer.transport.abort()
        await task


@pytest.mark.parametrize("limit", [0, 20, 40, 60, 3 * MIB])
async def test_a_stream_that_breaks_is_replaced_unseen(tmp_path: Path, limit: int) -> None:
    async with make_pair("tcp4", tmp_path) as pair:
        local, theirs = pair.near.allocate(12 * MIB), pair.far.allocate(12 * MIB)
        sent = fill(theirs, 7)
        grant = theirs.grant("r")
        async with Flaky(grant.endpoints[0].address, 1, limit) as proxy:
            detour = msgspec.structs.replace(grant, endpoints=[Endpoint("tcp", proxy.address)])
            batch = pair.near.submit([read(local, pair.near.open(detour), 12 * MIB)])
            await batch
            assert np.array_equal(array(local), sent)
            await pair.near.close()


async def test_a_second_address_of_a_peer_is_tried_when_the_first_is_dead(tmp_path: Path) -> None:
    async with make_pair("tcp4", tmp_path) as pair:
        local, theirs = pair.near.allocate(MIB), pair.far.allocate(MIB)
        sent = fill(theirs, 8)
        grant = theirs.grant("r")
        with silent_listener("127.0.0.1") as address:
            pass
        both = [Endpoint("tcp", address), *grant.endpoints]
        remote = pair.near.open(msgspec.structs.replace(grant, endpoints=both))
        await pair.near.submit([read(local, remote, MIB)])
        assert np.array_equal(array(local), sent)


async def test_a_region_closed_under_a_stuck_transfer_ends_it(tmp_path: Path) -> None:
    async with make_child("tcp4", tmp_path) as child:
        near = await start_engine("near", "tcp4", tmp_path)
        try:
            local, remote = near.allocate(MIB), near.open(child.grant)
            child.signal(signal.SIGSTOP)
            batch = near.submit([read(local, remote, MIB)], deadline_s=30.0)
            await local.unregister(timeout_s=0.1)
            with pytest.raises(RegionClosed):
                await batch
        finally:
            child.signal(signal.SIGCONT)
            await near.close()


async def test_withdraw_says_so_when_a_peer_does_not_let_go(tmp_path: Path) -> None:
    """A stopped process may be in the middle of a copy: its memory is not safe to reuse."""
    near = await start_engine("near", "shm", tmp_path)
    try:
        async with make_child("shm", tmp_path, length=4096) as child:
            theirs = near.allocate(MIB)
            grant = msgspec.json.encode(theirs.grant("w")).decode()
            assert await child.ask(f"write {grant}") == "written"
            child.signal(signal.SIGSTOP)
            with pytest.raises(TransferTimeout):
                await theirs.withdraw(msgspec.json.decode(grant, type=RegionGrant), timeout_s=0.2)
            child.signal(signal.SIGCONT)
            await until(lambda: near._table.notifiers[0].unconfirmed(1, None) == 0)
            await theirs.unregister()
    finally:
        await near.close()
