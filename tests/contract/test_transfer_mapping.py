"""A peer's memory read in place: for as long as the lease, and never past the owner's word."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.transfer import (
    BadTransfer,
    GrantRefused,
    PeerLost,
    RegionClosed,
    TransferEngine,
    TransferTimeout,
)
from tests.contract.transfer_wiring import Pair, array, fill, make_child, make_pair, start_engine
from tests.support.until import until

SIZE = 100_000


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("shm", tmp_path) as made:
        yield made


async def test_a_view_shows_the_owners_bytes_as_they_are_and_as_they_become(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    sent = fill(far, 1)
    remote = pair.near.open(far.grant("r", offset=1000, length=500))
    with await pair.near.map_remote(remote) as mapped:
        seen = np.frombuffer(mapped.view, np.uint8)
        assert np.array_equal(seen, sent[1000:1500])
        array(far)[1000] ^= 255
        assert seen[0] == sent[1000] ^ 255
        mapped.check()
        assert not seen.flags.writeable
        with pytest.raises(TypeError):
            mapped.view[0] = 1
    assert pair.near.stats()["views_open"] == 0


async def test_nothing_is_copied(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    with await pair.near.map_remote(pair.near.open(far.grant("r"))) as mapped:
        assert len(mapped.view) == SIZE
    assert pair.near.stats()["shm.read.bytes"] == 1  # the look that attaches


async def test_a_released_view_says_so(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    mapped = await pair.near.map_remote(pair.near.open(far.grant("r")))
    mapped.release()
    mapped.release()
    with pytest.raises(RegionClosed):
        mapped.check()
    with pytest.raises(RegionClosed):
        _ = mapped.view


@pytest.mark.parametrize("way", ["withdraw", "unregister"])
async def test_the_owner_waits_for_readers_to_let_go(pair: Pair, way: str) -> None:
    far = pair.far.allocate(SIZE)
    grant = far.grant("r")
    mapped = await pair.near.map_remote(pair.near.open(grant))
    leaving = asyncio.create_task(far.withdraw(grant) if way == "withdraw" else far.unregister())
    await until(lambda: _problem(mapped) is not None)
    assert isinstance(_problem(mapped), GrantRefused)
    assert not leaving.done()
    mapped.release()
    await asyncio.wait_for(leaving, 5.0)


def _problem(mapped) -> Exception | None:  # type: ignore[no-untyped-def]
    try:
        mapped.check()
    except (GrantRefused, PeerLost, RegionClosed, TransferTimeout) as error:
        return error
    return None


async def test_an_owner_that_must_not_wait_is_refused_and_can_ask_again(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    grant = far.grant("r")
    mapped = await pair.near.map_remote(pair.near.open(grant))
    with pytest.raises(TransferTimeout):
        await far.withdraw(grant, timeout_s=0.05)
    mapped.release()
    await far.withdraw(grant)


async def test_two_readers_are_both_waited_for(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    grant = far.grant("r")
    one = await pair.near.map_remote(pair.near.open(grant))
    two = await pair.near.map_remote(pair.near.open(grant))
    one.release()
    with pytest.raises(TransferTimeout):
        await far.withdraw(grant, timeout_s=0.05)
    two.release()
    await far.withdraw(grant)


async def test_a_lease_ends_by_itself_and_frees_the_owner(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    mapped = await pair.near.map_remote(pair.near.open(far.grant("r")), lease_s=0.1)
    mapped.check()
    await far.unregister(timeout_s=5.0)
    assert isinstance(_problem(mapped), TransferTimeout)


async def test_a_view_lasts_no_longer_than_its_grant(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    grant = far.grant("r", ttl_s=0.2)
    mapped = await pair.near.map_remote(pair.near.open(grant), lease_s=60.0)
    await until(lambda: not mapped.open)
    problem = _problem(mapped)
    assert time.time() >= grant.expires_unix_s - 0.01
    assert isinstance(problem, GrantRefused)
    assert problem.reason == "expired"


async def test_what_a_dead_owner_left_does_not_count(tmp_path: Path) -> None:
    near = await start_engine("near", "shm", tmp_path)
    try:
        async with make_child("shm", tmp_path, length=SIZE) as child:
            await child.ask("fill 3")
            mapped = await near.map_remote(near.open(child.grant))
            seen = np.frombuffer(mapped.view, np.uint8)
            mapped.check()
            await child.kill()
            with pytest.raises(PeerLost):
                mapped.check()
            int(seen.sum())  # no crash: the pages live on, they only mean nothing
            mapped.release()
    finally:
        await near.close()


async def test_a_closed_engine_lets_go_of_what_it_mapped(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    mapped = await pair.near.map_remote(pair.near.open(far.grant("r")))
    await pair.near.close()
    with pytest.raises(RegionClosed):
        mapped.check()
    await far.unregister()


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"key": bytes(16)}, "unknown"), ({"length": SIZE + 1}, "bounds"), ({"epoch": "x"}, "epoch")],
)
async def test_no_view_without_a_valid_grant(
    pair: Pair, change: dict[str, object], reason: str
) -> None:
    far = pair.far.allocate(SIZE)
    forged = msgspec.structs.replace(far.grant("r"), **change)
    with pytest.raises(GrantRefused) as raised:
        await pair.near.map_remote(pair.near.open(forged))
    assert raised.value.reason == reason


async def test_a_grant_to_write_shows_nothing(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    for rights in ("w", "r"):  # the second is a lie about the first
        lie = msgspec.structs.replace(far.grant("w"), rights=rights)
        with pytest.raises(GrantRefused) as raised:
            await pair.near.map_remote(pair.near.open(lie))
        assert raised.value.reason == "rights"


async def test_memory_in_no_shareable_file_cannot_be_mapped(pair: Pair) -> None:
    far = pair.far.register_memory(bytearray(SIZE))
    with pytest.raises(BadTransfer, match="shareable"):
        await pair.near.map_remote(pair.near.open(far.grant("r")))


@pytest.mark.parametrize("wiring", ["memory", "tcp4"])
async def test_elsewhere_there_is_no_view(tmp_path: Path, wiring: str) -> None:
    async with make_pair(wiring, tmp_path) as made:
        far = made.far.allocate(SIZE)
        with pytest.raises(BadTransfer, match="no shared memory"):
            await made.near.map_remote(made.near.open(far.grant("r")))


async def test_no_view_falls_back_to_a_copy_over_tcp(tmp_path: Path) -> None:
    near = await TransferEngine.start("near", host_id="h", run_dir=tmp_path)
    far = await TransferEngine.start("far", host_id="h", run_dir=tmp_path)
    try:
        theirs = far.allocate(SIZE)
        (tmp_path / "far.transfer").unlink()
        with pytest.raises(PeerLost):
            await near.map_remote(near.open(theirs.grant("r")))
        assert near.stats().get("tcp.read.bytes", 0) == 0
    finally:
        await near.close()
        await far.close()
