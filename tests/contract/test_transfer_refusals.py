"""Reachability is no permission: what a grant does not allow never happens, on any transport."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.messages.segments import RegionGrant
from moonpool.transfer import (
    BadTransfer,
    GrantRefused,
    LocalRegion,
    PeerLost,
    TransferEngine,
)
from moonpool.transfer.memory import allocate
from moonpool.transfer.regions import RegionTable
from tests.contract.transfer_wiring import (
    WIRINGS,
    Pair,
    array,
    fill,
    make_pair,
    read,
    start_engine,
    write,
)
from tests.support.until import until

SIZE = 100_000


@pytest.fixture(params=WIRINGS)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair(request.param, tmp_path) as made:
        yield made


async def refusal(
    pair: Pair, grant: RegionGrant, *, writing: bool = False, length: int = 100
) -> GrantRefused:
    """The refusal of one transfer under `grant`; checks that no byte moved here."""
    near = pair.near.allocate(SIZE)
    remote = pair.near.open(grant)
    ask = write if writing else read
    with pytest.raises(GrantRefused) as raised:
        await pair.near.submit([ask(near, remote, length)])
    assert not array(near).any()
    return raised.value


async def works(pair: Pair, region: LocalRegion) -> None:
    near = pair.near.allocate(region.length)
    await pair.near.submit([read(near, pair.near.open(region.grant("r")), region.length)])
    assert np.array_equal(array(near), array(region))


async def test_a_wrong_key_is_refused_and_the_peer_still_serves_others(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    sent = fill(far, 1)
    forged = msgspec.structs.replace(far.grant("rw"), key=bytes(16))
    assert (await refusal(pair, forged)).reason == "unknown"
    assert (await refusal(pair, forged, writing=True)).reason == "unknown"
    assert pair.far.stats()["refusals"] == pair.far.stats()["refusals.unknown"] == 2
    assert np.array_equal(array(far), sent)
    await works(pair, far)


async def test_a_key_opens_only_the_region_it_was_issued_for(pair: Pair) -> None:
    one, two = pair.far.allocate(SIZE), pair.far.allocate(SIZE)
    fill(two, 2)
    stolen = msgspec.structs.replace(one.grant("r"), region=two.grant("r").region)
    assert (await refusal(pair, stolen)).reason == "unknown"


async def test_a_grant_stretched_by_its_holder_is_refused(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    sent = fill(far, 3)
    given = far.grant("rw", offset=1000, length=100)
    longer = msgspec.structs.replace(given, length=101)
    assert (await refusal(pair, longer, length=101)).reason == "bounds"
    earlier = msgspec.structs.replace(given, offset=999)
    assert (await refusal(pair, earlier, writing=True, length=1)).reason == "bounds"
    huge = msgspec.structs.replace(given, length=1 << 62)
    assert (await refusal(pair, huge, length=50_000)).reason == "bounds"
    assert pair.far.stats()["refusals.bounds"] == 3
    assert np.array_equal(array(far), sent)


async def test_a_grant_stretched_after_it_worked_is_refused(pair: Pair) -> None:
    far, near = pair.far.allocate(SIZE), pair.near.allocate(SIZE)
    given = far.grant("rw", offset=1000, length=100)
    await pair.near.submit([read(near, pair.near.open(given), 100)])
    for offset, length, at in ((1000, 101, 100), (999, 100, 0), (0, SIZE, 50), (900, 1 << 40, 250)):
        stretched = pair.near.open(msgspec.structs.replace(given, offset=offset, length=length))
        with pytest.raises(GrantRefused) as raised:
            await pair.near.submit([write(near, stretched, 1, 0, at)])
        assert raised.value.reason == "bounds"
    assert not array(far).any()


async def test_a_grant_narrowed_by_its_holder_works(pair: Pair) -> None:
    far, near = pair.far.allocate(SIZE), pair.near.allocate(100)
    sent = fill(far, 4)
    narrowed = msgspec.structs.replace(far.grant("r"), offset=500, length=100)
    await pair.near.submit([read(near, pair.near.open(narrowed), 100)])
    assert np.array_equal(array(near), sent[500:600])


@pytest.mark.parametrize(("rights", "writing"), [("r", True), ("w", False)])
async def test_rights_are_kept_by_the_asking_side(pair: Pair, rights: str, writing: bool) -> None:
    far = pair.far.allocate(SIZE)
    sent = fill(far, 5)
    assert (await refusal(pair, far.grant(rights), writing=writing)).reason == "rights"
    assert np.array_equal(array(far), sent)


async def test_rights_are_kept_by_the_owner_when_the_holder_lies(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    sent = fill(far, 6)
    lie = msgspec.structs.replace(far.grant("r"), rights="rw")
    assert (await refusal(pair, lie, writing=True)).reason == "rights"
    assert np.array_equal(array(far), sent)


async def test_an_expired_grant_is_refused_even_when_it_worked_before(pair: Pair) -> None:
    far, near = pair.far.allocate(SIZE), pair.near.allocate(SIZE)
    grant = far.grant("r", ttl_s=0.2)
    remote = pair.near.open(grant)
    await pair.near.submit([read(near, remote, SIZE)])
    await until(lambda: time.time() >= grant.expires_unix_s)
    assert (await refusal(pair, grant)).reason == "expired"
    assert pair.far.stats()["refusals.expired"] >= 1


async def test_a_revoked_grant_is_refused_at_once(pair: Pair) -> None:
    far, near = pair.far.allocate(SIZE), pair.near.allocate(SIZE)
    grant, other = far.grant("rw"), far.grant("rw")
    remote = pair.near.open(grant)
    await pair.near.submit([read(near, remote, SIZE)])
    await pair.near.submit([read(near, pair.near.open(other), SIZE)])
    far.revoke(grant)
    far.revoke(grant)
    for writing in (False, True):
        assert (await refusal(pair, grant, writing=writing)).reason == "unknown"
    await pair.near.submit([read(near, pair.near.open(other), SIZE)])


async def test_withdraw_returns_when_no_peer_can_write_any_more(pair: Pair) -> None:
    size = 64 << 20
    far, near = pair.far.allocate(size), pair.near.allocate(size)
    array(near)[:] = 1
    grant = far.grant("w")
    batch = pair.near.submit([write(near, pair.near.open(grant), size)])
    await until(lambda: bool(array(far)[:4096].any()) or batch.done, every_s=0.0)
    await far.withdraw(grant)
    array(far)[:] = 0
    with pytest.raises((GrantRefused, PeerLost)):
        await batch
    assert not array(far).any()


async def test_an_unregistered_region_is_refused_to_peers_that_used_it(pair: Pair) -> None:
    far, near = pair.far.allocate(SIZE), pair.near.allocate(SIZE)
    grant = far.grant("r")
    await pair.near.submit([read(near, pair.near.open(grant), SIZE)])
    await far.unregister()
    assert (await refusal(pair, grant)).reason == "unknown"
    assert pair.near.stats().get("shm.mapped_bytes", 0) == 0


async def test_a_grant_of_an_earlier_life_is_refused(pair: Pair) -> None:
    far = pair.far.allocate(SIZE)
    old = far.grant("r")
    await works(pair, far)
    await pair.far.close()
    reborn = await start_engine("far", pair.wiring, pair.folder)
    try:
        region = reborn.allocate(SIZE)
        moved = msgspec.structs.replace(old, endpoints=reborn.endpoints)
        assert (await refusal(pair, moved)).reason == "epoch"
        assert reborn.stats()["refusals.epoch"] >= 1
        await works(Pair(pair.near, reborn, pair.wiring, pair.folder), region)
    finally:
        await reborn.close()


async def test_a_grant_without_a_common_transport_cannot_be_opened(pair: Pair) -> None:
    grant = msgspec.structs.replace(pair.far.allocate(10).grant("r"), endpoints=[])
    with pytest.raises(BadTransfer):
        pair.near.open(grant)


@pytest.mark.parametrize("arguments", [("x", 0, 5), ("r", -1, 5), ("r", 0, 0), ("r", 6, 5)])
async def test_a_grant_on_what_is_not_there_is_not_issued(
    pair: Pair, arguments: tuple[str, int, int]
) -> None:
    rights, offset, length = arguments
    with pytest.raises(BadTransfer):
        pair.far.allocate(10).grant(rights, offset=offset, length=length)


async def test_a_region_of_the_callers_memory_is_not_reached_through_shm(tmp_path: Path) -> None:
    both = ("shm", "tcp")
    near = await TransferEngine.start("n", host_id="h", run_dir=tmp_path, transports=both)
    far = await TransferEngine.start("f", host_id="h", run_dir=tmp_path, transports=both)
    try:
        local, theirs = near.allocate(SIZE), far.register_memory(bytearray(SIZE))
        sent = fill(theirs, 7)
        await near.submit([read(local, near.open(theirs.grant("r")), SIZE)])
        assert np.array_equal(array(local), sent)
        assert near.stats()["tcp.read.bytes"] == SIZE
    finally:
        await near.close()
        await far.close()


async def test_another_host_id_means_tcp(tmp_path: Path) -> None:
    near = await TransferEngine.start("n", host_id="one", run_dir=tmp_path)
    far = await TransferEngine.start("f", host_id="two", run_dir=tmp_path)
    try:
        local, theirs = near.allocate(SIZE), far.allocate(SIZE)
        await near.submit([read(local, near.open(theirs.grant("r")), SIZE)])
        assert near.stats()["tcp.read.bytes"] == SIZE
    finally:
        await near.close()
        await far.close()


async def test_expired_grants_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.transfer.regions.REMEMBER_EXPIRED_S", 0.0)
    table = RegionTable("t", "e", "h")
    region = table.add(allocate(10), "cpu:0")
    region.grant("r")
    last = [region.grant("r", ttl_s=0.001) for _ in range(50)][-1]
    await until(lambda: time.time() > last.expires_unix_s)
    region.grant("r")
    assert table.stats()["grants"] == 2
    await region.unregister()


async def test_taking_back_a_grant_that_has_done_its_work_breaks_no_stream(tmp_path: Path) -> None:
    async with make_pair("tcp4", tmp_path) as pair:
        far, near = pair.far.allocate(1 << 20), pair.near.allocate(1 << 20)
        for _ in range(300):
            grant = far.grant("r")
            await pair.near.submit([read(near, pair.near.open(grant), 1 << 20)])
            far.revoke(grant)
        assert pair.near.stats().get("tcp.streams_broken", 0) == 0
        assert pair.near.stats().get("retries", 0) == 0
