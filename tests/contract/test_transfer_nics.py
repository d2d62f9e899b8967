"""Several NICs to one peer: all carry, any may fail, and memory prefers those near it."""

import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import BadTransfer, PeerLost, TransferEngine, TransferTimeout
from moonpool.transfer.topology import Topology, parse
from tests.contract.transfer_wiring import array, fill, make_child, make_pair, read, write
from tests.support.until import until

MIB = 1 << 20
SIZE = 32 * MIB
TWO = "127.0.0.1,127.0.0.2"


async def start(folder: Path, name: str, hosts: str = TWO, told: str = "{}") -> TransferEngine:
    return await TransferEngine.start(
        name,
        host_id="here",
        run_dir=folder,
        listen_host=hosts,
        transports=("tcp",),
        topology=parse(told),
    )


@contextlib.asynccontextmanager
async def engines(
    folder: Path, *, near: str = TWO, far: str = TWO, told: str = "{}"
) -> AsyncIterator[tuple[TransferEngine, TransferEngine]]:
    one = await start(folder, "near", near, told)
    try:
        other = await start(folder, "far", far, told)
        try:
            yield one, other
        finally:
            await other.close()
    finally:
        await one.close()


def carried(engine: TransferEngine) -> list[float]:
    """Bytes over each NIC."""
    return [engine.stats()[f"tcp.nic.127.0.0.{number}.bytes"] for number in (1, 2)]


@pytest.mark.parametrize(("near", "far"), [(TWO, TWO), (TWO, "127.0.0.1"), ("127.0.0.1", TWO)])
async def test_all_nics_of_either_side_carry(tmp_path: Path, near: str, far: str) -> None:
    async with engines(tmp_path, near=near, far=far) as (one, other):
        local, theirs = one.allocate(SIZE), other.allocate(SIZE)
        sent = fill(theirs, 1)
        remote = one.open(theirs.grant("rw"))
        await one.submit([read(local, remote, SIZE)])
        assert np.array_equal(array(local), sent)
        again = fill(local, 2)
        await one.submit([write(local, remote, SIZE)])
        assert np.array_equal(array(theirs), again)
        assert one.stats()["tcp.read.slices"] > 16
        assert one.stats()["tcp.ways"] >= 2
        assert one.stats()["tcp.ways_resting"] == 0
        if near == TWO:
            assert min(carried(one)) > 0.2 * 2 * SIZE


@contextlib.contextmanager
def silent() -> Iterator[Endpoint]:
    """Accepts (the kernel does) and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield Endpoint("tcp", f"127.0.0.1:{sock.getsockname()[1]}")


def nobody() -> Endpoint:
    with silent() as endpoint:
        return endpoint


def beside(grant: RegionGrant, endpoint: Endpoint) -> RegionGrant:
    """One that works, and `endpoint`."""
    return msgspec.structs.replace(grant, endpoints=[endpoint, grant.endpoints[0]])


async def test_a_nic_where_nobody_is_costs_nobody_an_error(tmp_path: Path) -> None:
    async with engines(tmp_path) as (one, other):
        local, theirs = one.allocate(SIZE), other.allocate(SIZE)
        sent = fill(theirs, 3)
        remote = one.open(beside(theirs.grant("r"), nobody()))
        await one.submit([read(local, remote, SIZE)])
        assert np.array_equal(array(local), sent)
        assert one.stats()["retries"] > 0
        assert one.stats()["tcp.ways_resting"] > 0


async def test_a_nic_that_never_answers_is_left_for_the_other(tmp_path: Path) -> None:
    async with engines(tmp_path) as (one, other):
        local, theirs = one.allocate(SIZE), other.allocate(SIZE)
        sent = fill(theirs, 4)
        with silent() as endpoint:
            remote = one.open(beside(theirs.grant("rw"), endpoint))
            await one.submit([read(local, remote, SIZE)], deadline_s=5.0)
            assert np.array_equal(array(local), sent)
            again = fill(local, 5)
            batches = [one.submit([write(local, remote, MIB, i * MIB, i * MIB)]) for i in range(32)]
            for batch in batches:
                await batch
        assert np.array_equal(array(theirs), again)


async def test_a_transfer_may_be_cut_off_while_its_slices_wait(tmp_path: Path) -> None:
    """By its deadline, by cancel and by unregister: nothing stays behind."""
    async with engines(tmp_path) as (one, other):
        local, theirs = one.allocate(SIZE), other.allocate(SIZE)
        with silent() as first, silent() as second:
            grant = theirs.grant("r")
            ghost = msgspec.structs.replace(grant, endpoints=[first, second])
            remote = one.open(ghost)
            late = one.submit([read(local, remote, SIZE)], deadline_s=0.2)
            cancelled = one.submit([read(local, remote, SIZE)])
            with pytest.raises(TransferTimeout):
                await late
            cancelled.cancel()
            await cancelled.settled()
            waits = one.submit([read(local, remote, SIZE)])
            await local.unregister(timeout_s=0.1)
            await waits.settled()
            assert one.stats()["slices_under_way"] == 0
            assert one.stats()["tcp.slices_waiting"] == 0
            again = one.allocate(SIZE)
            sent = fill(theirs, 6)
            await one.submit([read(again, one.open(grant), SIZE)])
            assert np.array_equal(array(again), sent)


async def test_when_no_nic_reaches_the_peer_another_transport_does(tmp_path: Path) -> None:
    async with make_pair("memory", tmp_path) as pair:
        near = await TransferEngine.start(
            "both", host_id="x", run_dir=tmp_path, transports=("tcp", "memory"), listen_host=TWO
        )
        try:
            local, theirs = near.allocate(SIZE), pair.far.allocate(SIZE)
            sent = fill(theirs, 7)
            grant = theirs.grant("r")
            ends = [nobody(), nobody(), *grant.endpoints]
            remote = near.open(msgspec.structs.replace(grant, endpoints=ends))
            await near.submit([read(local, remote, SIZE)])
            assert np.array_equal(array(local), sent)
            assert near.stats()["memory.read.bytes"] == SIZE
        finally:
            await near.close()


async def test_a_stopped_peer_holds_up_nobody_else_on_the_same_nics(tmp_path: Path) -> None:
    async with (
        make_child("nics", tmp_path, name="well", length=SIZE) as well,
        make_child("nics", tmp_path, name="sick", length=SIZE) as sick,
    ):
        near = await start(tmp_path, "near")
        try:
            local, good, bad = near.allocate(SIZE), near.open(well.grant), near.open(sick.grant)
            await near.submit([read(local, good, SIZE), read(local, bad, SIZE)])
            sick.signal(signal.SIGSTOP)
            stuck = near.submit([read(local, bad, SIZE)], deadline_s=1.5)
            for _ in range(10):
                await near.submit([read(local, good, SIZE)], deadline_s=5.0)
            with pytest.raises((TransferTimeout, PeerLost)):
                await stuck
            sick.signal(signal.SIGCONT)

            async def works() -> bool:
                with contextlib.suppress(PeerLost, TransferTimeout):
                    await near.submit([read(local, bad, MIB)])
                    return True
                return False

            await until(works)
        finally:
            sick.signal(signal.SIGCONT)
            await near.close()


async def test_grants_say_which_nics_are_near_the_memory(tmp_path: Path) -> None:
    (loopback,) = {name for _, name in socket.if_nameindex() if name.startswith("lo")}
    told = f'{{"cpu:0": [["{loopback}"], []], "cpu:1": [["eth9"], ["{loopback}"]]}}'
    async with engines(tmp_path, told=told) as (one, _):
        near, far = one.allocate(4096, "cpu:0"), one.allocate(4096, "cpu:1")
        assert [e.rank for e in near.grant("r").endpoints] == [0, 0]
        assert [e.rank for e in far.grant("r").endpoints] == [1, 1]
        assert [e.nic for e in far.grant("r").endpoints] == [loopback, loopback]


async def test_an_engine_with_one_nic_says_nothing_of_it(tmp_path: Path) -> None:
    one = await start(tmp_path, "one", "127.0.0.1")
    try:
        grant = one.allocate(4096).grant("r")
        assert [(e.rank, e.nic) for e in grant.endpoints] == [(0, "")]
        assert one.open(grant).paths[0].ways == 1
        assert not any("nic." in name for name in one.stats())
    finally:
        await one.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"listen_host": "127.0.0.1,192.0.2.77"},
        {"listen_host": "127.0.0.1,nonsense.invalid"},
        {"advertise_host": "a,b,c"},
    ],
)
async def test_wrong_nics_are_refused_at_the_start(tmp_path: Path, wrong: dict[str, str]) -> None:
    given = {"listen_host": TWO, **wrong}
    with pytest.raises(BadTransfer):
        await TransferEngine.start(
            "x",
            host_id="h",
            run_dir=tmp_path,
            transports=("tcp",),
            topology=Topology(),
            **given,  # type: ignore[arg-type]
        )
