"""A checked transfer brings the very bytes or an error, whatever the wire does to them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import GrantRefused, TransferCorrupt
from moonpool.transfer.transports.tcp import split_address
from tests.contract.transfer_wiring import WIRINGS, Pair, array, fill, make_pair, read, write
from tests.support.bit_flipper import BitFlipper

MIB = 1 << 20
CHECKING = [wiring for wiring in WIRINGS if wiring != "rdma"]


@pytest.fixture(params=CHECKING)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def tcp(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("tcp4", tmp_path) as made:
        yield made


async def test_checked_batches_bring_the_same_bytes_as_others(pair: Pair) -> None:
    near, far = pair.near.allocate(20 * MIB), pair.far.allocate(20 * MIB)
    remote = pair.near.open(far.grant("rw"))
    sent = fill(far, 1)
    await pair.near.submit([read(near, remote, 20 * MIB)], checksum=True)
    assert np.array_equal(array(near), sent)
    sent = fill(near, 2)
    pieces = [write(near, remote, 500, 1000 * i, 1000 * i) for i in range(3000)]
    await pair.near.submit(pieces, checksum=True)
    got, cells = array(far)[: 3000 * 1000].reshape(-1, 1000), sent[: 3000 * 1000].reshape(-1, 1000)
    assert np.array_equal(got[:, :500], cells[:, :500])
    assert not np.array_equal(got[:, 500:], cells[:, 500:])


async def test_a_checked_refusal_is_the_refusal_that_others_get(pair: Pair) -> None:
    near, far = pair.near.allocate(100), pair.far.allocate(100)
    stolen = msgspec.structs.replace(far.grant("r"), key=bytes(16))
    with pytest.raises(GrantRefused) as raised:
        await pair.near.submit([read(near, pair.near.open(stolen), 100)], checksum=True)
    assert raised.value.reason == "unknown"
    assert not array(near).any()


@asynccontextmanager
async def detour(
    grant: RegionGrant, *, always: bool = False, ask_at: int = -1, answer_at: int = -1
) -> AsyncIterator[tuple[RegionGrant, BitFlipper]]:
    """The same grant, reached through a wire that damages what passes."""
    target = split_address(grant.endpoints[0].address)
    async with BitFlipper(target, always=always, ask_at=ask_at, answer_at=answer_at) as flipper:
        address = f"127.0.0.1:{flipper.port}"
        yield msgspec.structs.replace(grant, endpoints=[Endpoint("tcp", address)]), flipper


async def test_one_flipped_bit_goes_unseen_when_nobody_checks(tcp: Pair) -> None:
    """So the tests below can fail."""
    near, far = tcp.near.allocate(MIB), tcp.far.allocate(MIB)
    sent = fill(far, 3)
    async with detour(far.grant("r"), answer_at=MIB // 2) as (grant, flipper):
        await tcp.near.submit([read(near, tcp.near.open(grant), MIB)])
        assert flipper.flipped == 1
        assert int((array(near) != sent).sum()) == 1


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_one_flipped_bit_costs_a_second_try_and_no_more(tcp: Pair, kind: str) -> None:
    near, far = tcp.near.allocate(MIB), tcp.far.allocate(MIB)
    sent = fill(far if kind == "read" else near, 4)
    asking, answering = (-1, MIB // 2) if kind == "read" else (MIB // 2, -1)
    wire = detour(far.grant("rw"), ask_at=asking, answer_at=answering)
    async with wire as (grant, flipper):
        ask = read if kind == "read" else write
        await tcp.near.submit([ask(near, tcp.near.open(grant), MIB)], checksum=True)
        assert flipper.flipped == 1
        assert np.array_equal(array(near), sent)
        assert np.array_equal(array(far), sent)
        assert tcp.near.stats()["retries"] >= 1


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_wire_that_always_damages_is_named_as_such(tcp: Pair, kind: str) -> None:
    near, far = tcp.near.allocate(MIB), tcp.far.allocate(MIB)
    fill(far, 5)
    async with detour(far.grant("rw"), always=True) as (grant, _):
        ask = read if kind == "read" else write
        with pytest.raises(TransferCorrupt):
            await tcp.near.submit([ask(near, tcp.near.open(grant), MIB)], checksum=True)


@pytest.mark.parametrize("at", range(0, 80, 3))
async def test_a_flipped_bit_anywhere_in_a_head_never_counts_as_success(tcp: Pair, at: int) -> None:
    """A damaged offset would put the right bytes in the wrong place."""
    near, far = tcp.near.allocate(4096), tcp.far.allocate(MIB)
    sent, before = fill(near, 6), fill(far, 7)
    grant = far.grant("rw")
    hello = 40
    async with detour(grant, ask_at=hello + at) as (crooked, flipper):
        remote = tcp.near.open(crooked)
        batch = tcp.near.submit([write(near, remote, 4096, 0, MIB // 2)], checksum=True)
        await batch
        assert flipper.flipped == 1
    before[MIB // 2 : MIB // 2 + 4096] = sent
    assert np.array_equal(array(far), before)


@pytest.mark.parametrize("at", range(0, 32, 3))
async def test_a_flipped_bit_anywhere_in_an_answers_head_is_tried_again(tcp: Pair, at: int) -> None:
    near, far = tcp.near.allocate(4096), tcp.far.allocate(4096)
    sent = fill(far, 8)
    async with detour(far.grant("r"), answer_at=40 + at) as (grant, flipper):
        await tcp.near.submit([read(near, tcp.near.open(grant), 4096)], checksum=True)
        assert flipper.flipped == 1
    assert np.array_equal(array(near), sent)


async def test_bytes_that_change_under_a_copy_are_not_called_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared memory has no wire; what is checked is that both sides hold the same bytes."""
    async with make_pair("shm", tmp_path) as made:
        near, far = made.near.allocate(4096), made.far.allocate(4096)
        fill(far, 9)

        def spoiled_copy(job, target, source, lengths, step_bytes):  # type: ignore[no-untyped-def]
            array(near)[:] = array(far)
            array(near)[77] ^= 1
            yield
            return True

        monkeypatch.setattr("moonpool.transfer.copying.copy_ranges", spoiled_copy)
        with pytest.raises(TransferCorrupt):
            await made.near.submit(
                [read(near, made.near.open(far.grant("r")), 4096)], checksum=True
            )
