"""Connections: no more at once than the bound, the useful ones kept, none to who says nothing."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import BadTransfer, LocalRegion, OpenedGrant, PeerLost, TransferEngine
from tests.contract.transfer_wiring import array, fill, read
from tests.support.until import until

SIZE = 100_000
OPEN = {"shm": "shm.peers_linked", "tcp": "tcp.streams_open"}
SERVED = {"shm": "shm.peers_served", "tcp": "tcp.streams_served"}


@contextlib.asynccontextmanager
async def engine(
    name: str, kind: str, folder: Path, *, endpoints_max: int = 0, eviction: str = "sieve"
) -> AsyncIterator[TransferEngine]:
    made = await TransferEngine.start(
        name,
        host_id="h",
        run_dir=folder,
        transports=(kind,),
        endpoints_max=endpoints_max,
        endpoint_eviction=eviction,
    )
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture(params=["shm", "tcp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def _read(near: TransferEngine, local: LocalRegion, remote: OpenedGrant) -> None:
    await near.submit([read(local, remote, SIZE)])


@pytest.mark.parametrize(("eviction", "spared"), [("sieve", True), ("fifo", False)])
async def test_of_too_many_peers_the_least_useful_is_let_go(
    kind: str, eviction: str, spared: bool, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        near = await stack.enter_async_context(
            engine("near", kind, tmp_path, endpoints_max=2, eviction=eviction)
        )
        owners = [
            await stack.enter_async_context(engine(f"far-{i}", kind, tmp_path)) for i in range(3)
        ]
        local, theirs = near.allocate(SIZE), [owner.allocate(SIZE) for owner in owners]
        sent = [fill(region, i) for i, region in enumerate(theirs)]
        remotes = [near.open(region.grant("r")) for region in theirs]
        for place in (0, 1, 0, 0, 2):  # 0 is the oldest, and the one in use
            await _read(near, local, remotes[place])
            assert np.array_equal(array(local), sent[place])
        gone, kept = (1, 0) if spared else (0, 1)
        await until(lambda: owners[gone].stats()[SERVED[kind]] == 0)
        assert owners[kept].stats()[SERVED[kind]] > 0
        assert near.stats()[f"{kind}.links_retired"] == 1
        await _read(near, local, remotes[gone])  # and back again
        assert np.array_equal(array(local), sent[gone])


async def test_a_bound_far_below_the_peers_in_use_slows_and_breaks_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        near = await stack.enter_async_context(engine("near", kind, tmp_path, endpoints_max=2))
        owners = [
            await stack.enter_async_context(engine(f"far-{i}", kind, tmp_path)) for i in range(5)
        ]
        theirs = [owner.allocate(SIZE) for owner in owners]
        sent = [fill(region, i) for i, region in enumerate(theirs)]
        remotes = [near.open(region.grant("r")) for region in theirs]

        async def use(place: int) -> None:
            local = near.allocate(SIZE)
            for _ in range(8):
                await _read(near, local, remotes[place])
                assert np.array_equal(array(local), sent[place])

        async with asyncio.TaskGroup() as group:
            for place in range(5):
                group.create_task(use(place))
        per_peer = 1 if kind == "shm" else 3
        await until(lambda: near.stats()[OPEN[kind]] <= 2 * per_peer)
        assert near.stats()[f"{kind}.links_retired"] >= 3


async def test_a_peer_that_is_being_read_in_place_is_not_let_go(tmp_path: Path) -> None:
    async with (
        engine("near", "shm", tmp_path, endpoints_max=1) as near,
        engine("far-0", "shm", tmp_path) as first,
        engine("far-1", "shm", tmp_path) as second,
    ):
        mapped = await near.map_remote(near.open(first.allocate(SIZE).grant("r")))
        local = near.allocate(SIZE)
        await _read(near, local, near.open(second.allocate(SIZE).grant("r")))
        assert first.stats()["shm.peers_served"] == 1
        mapped.check()
        mapped.release()
        await until(lambda: first.stats()["shm.peers_served"] == 0)


async def test_an_eviction_nobody_knows_stops_the_start(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadTransfer, match="sieve"):
        async with engine("near", kind, tmp_path, eviction="dice"):
            pass


@contextlib.contextmanager
def _silent(kind: str, folder: Path):  # type: ignore[no-untyped-def]
    """Takes connections and never says a word."""
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as sock:
            yield f"127.0.0.1:{sock.getsockname()[1]}"
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(folder / "silent"))
        sock.listen(8)
        yield str(folder / "silent")


async def test_a_handshake_has_a_time_limit_of_its_own(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.shm_upkeep.HANDSHAKE_S", 0.1)
    monkeypatch.setattr("moonpool.transfer.transports.tcp_stream.CONNECT_S", 0.1)
    async with engine("near", kind, tmp_path) as near, engine("far", kind, tmp_path) as far:
        grant = far.allocate(SIZE).grant("r")
        local = near.allocate(SIZE)
        with _silent(kind, tmp_path) as address:
            silent: RegionGrant = msgspec.structs.replace(
                grant, endpoints=[Endpoint(kind, address)]
            )
            with pytest.raises(PeerLost):
                await near.submit([read(local, near.open(silent), SIZE)], deadline_s=60.0)
        await _read(near, local, near.open(grant))
