"""What the contract suite cannot ask of every transport: choosing adapters, what an adapter itself
refuses, falling back when one goes down, and sleeping when there is nothing to do."""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from moonpool.transfer import GrantRefused, PeerLost, TransferEngine
from moonpool.transfer.transports import rdma_link
from moonpool.transfer.transports.rdma_device import Device
from moonpool.transfer.transports.rdma_flight import Flight
from moonpool.transfer.transports.rdma_wire import Granted
from tests.contract.transfer_wiring import Pair, array, fill, make_pair, read, start_engine, write
from tests.support.until import until

MIB = 1 << 20
SIZE = MIB


async def start(
    name: str, folder: Path, device: str, transports: tuple[str, ...] = ("rdma", "tcp")
) -> TransferEngine:
    return await TransferEngine.start(
        name, host_id="here", run_dir=folder, transports=transports, rdma_device=device
    )


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("rdma", tmp_path) as made:
        yield made


def adapters(engine: TransferEngine) -> list[Any]:
    devices: list[Any] = engine._transports["rdma"]._devices  # type: ignore[attr-defined]
    return devices


@pytest.mark.parametrize(
    ("wanted", "names"),
    [("", ["rxe0", "rxe1"]), ("rxe1", ["rxe1"]), ("rxe1:1:0, rxe0", ["rxe1", "rxe0"])],
)
async def test_adapters_are_found_or_chosen(tmp_path: Path, wanted: str, names: list[str]) -> None:
    engine = await start("x", tmp_path, wanted)
    try:
        assert engine.unavailable == {}
        ends = [e.address for e in engine.endpoints if e.transport == "rdma"]
        assert [end.rpartition("/")[2] for end in ends] == names
        assert engine.stats()["rdma.adapters"] == len(names)
    finally:
        await engine.close()


async def test_the_address_that_routes_is_chosen_unless_another_is_named(tmp_path: Path) -> None:
    plain = await start("plain", tmp_path, "rxe0")
    other = await start("other", tmp_path, "rxe0:1:0")
    try:
        assert adapters(plain)[0].gid.ip == "10.77.0.1"
        assert adapters(other)[0].gid.index == 0
    finally:
        await plain.close()
        await other.close()


async def test_an_adapter_that_is_not_there_is_named_in_the_reason(tmp_path: Path) -> None:
    engine = await start("x", tmp_path, "mlx5_7")
    try:
        assert "mlx5_7" in engine.unavailable["rdma"]
        assert "rxe0" in engine.unavailable["rdma"]
    finally:
        await engine.close()


async def test_memory_in_no_file_is_reached_from_elsewhere_too(pair: Pair) -> None:
    theirs = pair.far.register_memory(np.zeros(SIZE, np.uint8))
    near = pair.near.register_memory(bytearray(SIZE))
    sent = fill(theirs, 1)
    remote = pair.near.open(theirs.grant("rw"))
    await pair.near.submit([read(near, remote, SIZE)])
    assert np.array_equal(array(near), sent)
    assert pair.near.stats()["rdma.bytes_pinned"] == SIZE
    await near.unregister()
    assert pair.near.stats()["rdma.bytes_pinned"] == 0


# What the adapter refuses, whatever the asking side believes.


@pytest.fixture(params=["registration", "window"])
def exposed_by(request: pytest.FixtureRequest, pair: Pair) -> str:
    """Soft-RoCE's windows keep rights, owner and end, but not their bounds: they are off by
    default there, and on here."""
    for device in adapters(pair.far):
        device.windows = request.param == "window"
    return str(request.param)


def lie(
    monkeypatch: pytest.MonkeyPatch, *, shift: int = 0, key: int | None = None
) -> list[Granted]:
    """The asking side aims elsewhere, uses another key, and thinks it may write. Returns what the
    owner really said, in time."""
    heard: list[Granted] = []
    really = rdma_link.Link.connect

    def connect(self: rdma_link.Link, *rest: Any) -> Granted:
        heard.append(really(self, *rest))
        return msgspec.structs.replace(heard[-1], rights="rw")

    def flight(job: Any, queue: Any, memory: Any, rkey: int, there: int, longest: int) -> Flight:
        return Flight(job, queue, memory, key or rkey, there + shift, longest)

    monkeypatch.setattr(rdma_link.Link, "connect", connect)
    monkeypatch.setattr(rdma_link, "Flight", flight)
    return heard


@pytest.mark.parametrize("shift", [-4096, -1, 1, 4096])
async def test_the_adapter_keeps_the_bounds_of_a_grant(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    near, far = pair.near.allocate(4096), pair.far.allocate(SIZE)
    sent = fill(far, 2)
    grant = far.grant("rw", offset=8192, length=4096)
    lie(monkeypatch, shift=shift)
    for ask in (read, write):
        with pytest.raises(PeerLost, match="refused access"):
            await pair.near.submit([ask(near, pair.near.open(grant), 4096)])
    assert np.array_equal(array(far), sent)


async def test_the_adapter_keeps_the_rights_of_a_grant(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, exposed_by: str
) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    sent = fill(far, 3)
    grant = far.grant("r")
    await pair.near.submit([read(near, pair.near.open(grant), SIZE)])
    assert np.array_equal(array(near), sent)
    array(near)[:] = 0
    await pair.near.close()
    lie(monkeypatch)
    liar = await start_engine("near", "rdma", pair.folder)
    try:
        local = liar.allocate(SIZE)
        believed = msgspec.structs.replace(grant, rights="rw")
        with pytest.raises(PeerLost, match="refused access"):
            await liar.submit([write(local, liar.open(believed), SIZE)])
    finally:
        await liar.close()
    assert np.array_equal(array(far), sent)


async def test_a_key_is_worth_nothing_on_another_peers_queue_pairs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, exposed_by: str
) -> None:
    theirs, other = pair.far.allocate(SIZE), pair.far.allocate(SIZE)
    sent = fill(theirs, 4)
    near = pair.near.allocate(SIZE)
    heard = lie(monkeypatch)
    await pair.near.submit([read(near, pair.near.open(theirs.grant("rw")), SIZE)])
    assert np.array_equal(array(near), sent)
    stolen = heard[0]
    thief = await start_engine("near", "rdma", pair.folder)
    try:
        local = thief.allocate(SIZE)
        mine = other.grant("rw")
        lie(monkeypatch, shift=stolen.address - other.address, key=stolen.keys[0])
        with pytest.raises(PeerLost, match="refused access"):
            await thief.submit([read(local, thief.open(mine), SIZE)])
        assert not array(local).any()
    finally:
        await thief.close()


async def test_a_revoked_key_is_dead_in_the_adapter_itself(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, exposed_by: str
) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    grant = far.grant("rw")
    remote = pair.near.open(grant)
    await pair.near.submit([read(near, remote, SIZE)])
    fill(far, 5)
    path = remote.paths[0]
    monkeypatch.setattr(path._grants, "withdraw", lambda word: None)  # the word is not heard
    far.revoke(grant)
    with pytest.raises(GrantRefused) as raised:
        await pair.near.submit([read(near, remote, SIZE)])
    assert raised.value.reason == "unknown"
    assert pair.near.stats()["rdma.links_broken"] == 1
    assert not array(near).any()


async def test_an_expired_key_is_dead_in_the_adapter_itself(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    grant = far.grant("r", ttl_s=3.0)
    lasting = msgspec.structs.replace(grant, expires_unix_s=0.0)  # so the holder believes
    remote = pair.near.open(lasting)
    await pair.near.submit([read(near, remote, SIZE)])
    assert pair.far.stats()["rdma.grants_exposed"] == 1
    await until(lambda: pair.far.stats()["rdma.grants_exposed"] == 0, deadline_s=20.0)
    with pytest.raises(GrantRefused) as raised:
        await pair.near.submit([read(near, remote, SIZE)])
    assert raised.value.reason == "expired"


# Links that go down, and rest.


def wire(state: str) -> None:
    subprocess.run(["ip", "link", "set", "v0", state], check=True)
    if state == "up":  # what the kernel forgot with the link, see guest.sh
        for address, there, here in (("10.77.0.2", "v1", "v0"), ("10.77.0.1", "v0", "v1")):
            mac = Path(f"/sys/class/net/{there}/address").read_text().strip()
            ip = ["ip", "neigh", "replace", address, "lladdr", mac, "dev", here]
            subprocess.run(ip, check=True)


@contextlib.asynccontextmanager
async def both_ways(folder: Path) -> AsyncIterator[tuple[TransferEngine, TransferEngine]]:
    near = await start("near", folder, "rxe0")
    far = await start("far", folder, "rxe1")
    try:
        yield near, far
    finally:
        wire("up")
        await near.close()
        await far.close()


async def test_when_the_link_goes_down_tcp_takes_over_unseen_and_rdma_comes_back(
    tmp_path: Path,
) -> None:
    size = 16 * MIB
    async with both_ways(tmp_path) as (near, far):
        local, theirs = near.allocate(size), far.allocate(size)
        sent = fill(theirs, 6)
        remote = near.open(theirs.grant("r"))
        await near.submit([read(local, remote, 4096)])
        assert near.stats()["rdma.read.bytes"] == 4096
        array(local)[:] = 0
        batch = near.submit([read(local, remote, size)], deadline_s=60.0)
        await until(lambda: bool(array(local)[:4096].any()), every_s=0.0)
        wire("down")
        await batch
        assert np.array_equal(array(local), sent)
        assert near.stats()["tcp.read.bytes"] > 0
        before = near.stats()["rdma.read.bytes"]
        started_s = time.monotonic()
        await near.submit([read(local, remote, MIB)])  # straight to tcp: rdma rests, or is down
        assert time.monotonic() - started_s < 5.0
        wire("up")
        await until(lambda: near.stats()["rdma.paths_resting"] == 0, deadline_s=60.0)
        await near.submit([read(local, remote, MIB)])
        assert near.stats()["rdma.read.bytes"] > before


async def test_an_adapter_that_is_down_at_the_start_makes_rdma_unavailable(
    tmp_path: Path,
) -> None:
    wire("down")
    try:
        engine = await start("x", tmp_path, "rxe0")
        try:
            assert "rxe0" in engine.unavailable["rdma"]
            assert [e.transport for e in engine.endpoints] == ["tcp"]
        finally:
            await engine.close()
    finally:
        wire("up")


async def test_an_open_link_without_work_burns_nothing(pair: Pair) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    await pair.near.submit([read(near, pair.near.open(far.grant("r")), SIZE)])
    assert pair.near.stats()["rdma.links_open"] == 1
    before_s = time.process_time()
    await asyncio.sleep(2.0)  # time has to pass for idleness to show
    assert time.process_time() - before_s < 0.2


async def test_an_idle_link_closes_and_is_made_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.rdma_path.IDLE_S", 0.2)
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    remote = pair.near.open(far.grant("r"))
    await pair.near.submit([read(near, remote, SIZE)])
    await until(lambda: pair.near.stats()["rdma.links_open"] == 0)
    await until(lambda: pair.far.stats()["rdma.peers_served"] == 0)
    await pair.near.submit([read(near, remote, SIZE)])


async def test_links_beyond_the_bound_are_closed_and_made_again_when_needed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.endpoint_pool.ENDPOINTS_MAX", 1)
    near, far, own = (
        pair.near.allocate(SIZE),
        pair.far.allocate(SIZE),
        pair.near.allocate(SIZE),
    )
    remotes = [pair.near.open(far.grant("r")), pair.near.open(own.grant("r"))]
    for remote in remotes * 3:
        await pair.near.submit([read(near, remote, SIZE)])
    await until(lambda: pair.near.stats()["rdma.links_open"] <= 1)
    assert pair.near.stats()["rdma.links_retired"] >= 1


async def test_more_ranges_than_a_queue_pair_holds_arrive(pair: Pair) -> None:
    count, cell = 1000, 512
    near, far = pair.near.allocate(count * cell), pair.far.allocate(count * cell)
    sent = fill(far, 7).reshape(count, cell)
    order = np.random.default_rng(8).permutation(count).tolist()
    remote = pair.near.open(far.grant("rw"))
    requests = [read(near, remote, cell, i * cell, j * cell) for i, j in enumerate(order)]
    await pair.near.submit(requests, deadline_s=60.0)
    assert np.array_equal(array(near).reshape(count, cell), sent[order])


async def test_a_region_may_be_unregistered_while_a_peer_reads_it(pair: Pair) -> None:
    size = 32 * MIB
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    array(far)[:] = 1
    batch = pair.near.submit([read(near, pair.near.open(far.grant("r")), size)], deadline_s=60.0)
    await until(lambda: bool(array(near)[:4096].any()) or batch.done, every_s=0.0)
    await far.unregister()
    assert pair.far.stats()["rdma.grants_exposed"] == 0
    await batch.settled()
    error = batch.error(0)
    assert isinstance(error, GrantRefused) or (error is None and array(near).all())


# Several adapters to one peer.


@contextlib.asynccontextmanager
async def two_adapters(folder: Path) -> AsyncIterator[tuple[TransferEngine, TransferEngine]]:
    """Crossed, so that each pair is the two ends of the wire."""
    near = await start("near", folder, "rxe0,rxe1", ("rdma",))
    far = await start("far", folder, "rxe1,rxe0", ("rdma",))
    try:
        yield near, far
    finally:
        await near.close()
        await far.close()


async def test_two_adapters_share_the_bytes(tmp_path: Path) -> None:
    size = 8 * MIB
    async with two_adapters(tmp_path) as (near, far):
        local, theirs = near.allocate(size), far.allocate(size)
        sent = fill(theirs, 11)
        remote = near.open(theirs.grant("rw"))
        for _ in range(3):
            await near.submit([read(local, remote, size)], deadline_s=60.0)
        assert np.array_equal(array(local), sent)
        again = fill(local, 12)
        await near.submit([write(local, remote, size)], deadline_s=60.0)
        assert np.array_equal(array(theirs), again)
        stats = near.stats()
        assert min(stats["rdma.nic.rxe0.bytes"], stats["rdma.nic.rxe1.bytes"]) > 0.2 * 4 * size


async def test_one_adapter_carries_what_the_other_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 8 * MIB
    async with two_adapters(tmp_path) as (near, far):
        dead, really = adapters(near)[0], Device.active.fget
        assert really is not None
        up = property(lambda self: self is not dead and really(self))
        monkeypatch.setattr(Device, "active", up)
        local, theirs = near.allocate(size), far.allocate(size)
        sent = fill(theirs, 13)
        remote = near.open(theirs.grant("r"))
        await near.submit([read(local, remote, size)], deadline_s=60.0)
        assert np.array_equal(array(local), sent)
        assert near.stats()["rdma.nic.rxe0.bytes"] == 0
        assert near.stats()["rdma.nic.rxe0.rests"] > 0
        monkeypatch.undo()

        async def both() -> bool:
            await near.submit([read(local, remote, size)], deadline_s=60.0)
            return near.stats()["rdma.nic.rxe0.bytes"] > 0

        await until(both, deadline_s=60.0)
