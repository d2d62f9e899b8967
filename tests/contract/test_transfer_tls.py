"""tcp over tls: the same transfers, and nobody without a certificate of the mesh's authority."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.messages.segments import Endpoint
from moonpool.transfer import BadTransfer, PeerLost, PeerUntrusted, TlsFiles, TransferEngine
from moonpool.transfer.transports.tcp import split_address
from tests.contract.test_transfer import (  # noqa: F401  the same promises, run here over tls
    test_a_cancelled_batch_ends_and_touches_nothing_afterwards,
    test_a_closed_engine_ends_what_is_under_way,
    test_a_range_of_any_size_arrives_in_both_directions,
    test_both_sides_may_ask_at_the_same_time,
    test_layers_that_lie_side_by_side_travel_as_one_range,
    test_many_batches_at_once_do_not_mix,
    test_random_batches_leave_exactly_the_promised_bytes,
    test_reads_and_writes_of_one_batch_both_happen,
    test_unregister_waits_for_transfers_and_then_refuses,
)
from tests.contract.test_transfer_failures import (  # noqa: F401
    near,
    test_a_peer_killed_in_the_middle_is_lost_within_moments,
    test_a_peer_that_restarts_is_reached_again_with_a_new_grant,
    test_a_stopped_peer_costs_its_deadline_and_no_more,
)
from tests.contract.test_transfer_refusals import (  # noqa: F401
    test_a_grant_stretched_by_its_holder_is_refused,
    test_a_revoked_grant_is_refused_at_once,
    test_a_wrong_key_is_refused_and_the_peer_still_serves_others,
)
from tests.contract.transfer_wiring import Pair, array, fill, make_pair, read
from tests.support.bit_flipper import BitFlipper
from tests.support.certificates import certificates
from tests.support.until import until

SIZE = 100_000


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("tls4", tmp_path) as made:
        yield made


@pytest.fixture
def wiring() -> str:
    return "tls4"


async def _engine(name: str, folder: Path, tls: TlsFiles | None) -> TransferEngine:
    return await TransferEngine.start(
        name, host_id="h", run_dir=folder, transports=("tcp",), tls=tls
    )


@pytest.mark.parametrize("files", ["plain", "stranger"])
async def test_who_has_no_certificate_of_the_authority_gets_no_byte(
    pair: Pair, files: str, tmp_path: Path
) -> None:
    far = pair.far.allocate(SIZE)
    fill(far, 1)
    tls = None if files == "plain" else certificates("stranger")
    other = await _engine("other", tmp_path, tls)
    try:
        local = other.allocate(SIZE)
        expected = PeerLost if files == "plain" else PeerUntrusted
        with pytest.raises(expected):
            await other.submit([read(local, other.open(far.grant("r")), SIZE)])
        assert not array(local).any()
        await until(lambda: pair.far.stats().get("tcp.tls_refused", 0) >= 1)
    finally:
        await other.close()


async def test_a_member_that_trusts_others_is_refused_by_us(pair: Pair, tmp_path: Path) -> None:
    """It takes our certificate for good, and we do not take its: both directions are checked."""
    far = pair.far.allocate(SIZE)
    stranger = replace(certificates("stranger"), authority=certificates("mesh").authority)
    other = await _engine("other", tmp_path, stranger)
    try:
        local = other.allocate(SIZE)
        with pytest.raises(PeerUntrusted):
            await other.submit([read(local, other.open(far.grant("r")), SIZE)])
    finally:
        await other.close()


@pytest.mark.parametrize("files", ["plain", "stranger"])
async def test_we_give_nothing_to_an_owner_that_proves_nothing(
    pair: Pair, files: str, tmp_path: Path
) -> None:
    tls = None if files == "plain" else certificates("stranger")
    other = await _engine("other", tmp_path, tls)
    try:
        theirs, mine = other.allocate(SIZE), pair.near.allocate(SIZE)
        with pytest.raises(PeerLost) as raised:
            await pair.near.submit([read(mine, pair.near.open(theirs.grant("r")), SIZE)])
        assert isinstance(raised.value, PeerUntrusted) or files == "plain"
    finally:
        await other.close()


async def test_what_travels_cannot_be_read(pair: Pair) -> None:
    secret = b"the secret of the mesh " * 400
    far, mine = pair.far.allocate(len(secret)), pair.near.allocate(len(secret))
    far.view[:] = secret
    grant = far.grant("r")
    async with BitFlipper(split_address(grant.endpoints[0].address)) as wire:
        detour = msgspec.structs.replace(
            grant, endpoints=[Endpoint("tcp", f"127.0.0.1:{wire.port}")]
        )
        await pair.near.submit([read(mine, pair.near.open(detour), len(secret))])
        assert bytes(mine.view) == secret
        assert wire.passed_bytes > len(secret)
        assert b"secret" not in wire.seen


async def test_a_flipped_bit_on_the_wire_is_seen_without_a_checksum(pair: Pair) -> None:
    far, mine = pair.far.allocate(SIZE), pair.near.allocate(SIZE)
    sent = fill(far, 2)
    grant = far.grant("r")
    async with BitFlipper(split_address(grant.endpoints[0].address), answer_at=50_000) as wire:
        detour = msgspec.structs.replace(
            grant, endpoints=[Endpoint("tcp", f"127.0.0.1:{wire.port}")]
        )
        await pair.near.submit([read(mine, pair.near.open(detour), SIZE)])
        assert wire.flipped == 1
    assert np.array_equal(array(mine), sent)


async def test_a_peer_that_begins_and_never_shakes_hands_is_dropped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.tcp_guests.HELLO_S", 0.1)
    host, port = split_address(pair.far.endpoints[0].address)
    sock = await asyncio.to_thread(socket.create_connection, (host, port), 5.0)
    with sock:
        assert await asyncio.to_thread(sock.recv, 1) == b""
    await until(lambda: pair.far.stats()["tcp.streams_served"] == 0)
    assert pair.far.stats()["tcp.tls_refused"] == 1


async def test_an_owner_that_is_full_is_no_stranger(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.tcp_guests.STREAMS_MAX", 0)
    far, mine = pair.far.allocate(SIZE), pair.near.allocate(SIZE)
    with pytest.raises(PeerLost) as raised:
        await pair.near.submit([read(mine, pair.near.open(far.grant("r")), SIZE)])
    assert not isinstance(raised.value, PeerUntrusted)
    assert pair.far.stats()["tcp.streams_refused"] >= 1


@pytest.mark.parametrize("missing", ["certificate", "key", "authority"])
async def test_files_that_are_no_good_stop_the_start(tmp_path: Path, missing: str) -> None:
    files = replace(certificates("mesh"), **{missing: str(tmp_path / "nothing.pem")})
    with pytest.raises(BadTransfer, match="tls"):
        await _engine("e", tmp_path, files)


async def test_a_key_of_another_certificate_stops_the_start(tmp_path: Path) -> None:
    files = replace(certificates("mesh"), key=certificates("stranger").key)
    with pytest.raises(BadTransfer, match="tls"):
        await _engine("e", tmp_path, files)


async def test_rdma_is_not_spoken_by_who_asks_for_tls(tmp_path: Path) -> None:
    engine = await TransferEngine.start(
        "e", host_id="h", run_dir=tmp_path, tls=certificates("mesh")
    )
    try:
        assert "does not encrypt" in engine.unavailable["rdma"]
        assert {e.transport for e in engine.endpoints} == {"shm", "tcp"}
    finally:
        await engine.close()
