"""Small transfers over tcp: driven by the loop, and as safe as those that have threads."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.transfer import (
    GrantRefused,
    LocalRegion,
    Op,
    OpenedGrant,
    Priority,
    TransferRequest,
    TransferTimeout,
    lookout,
)
from moonpool.transfer.job import Job
from moonpool.transfer.transports import tcp_express, tcp_peer, tcp_stream
from tests.contract.transfer_wiring import Pair, array, fill, make_child, make_pair, read, write
from tests.support.until import until

SMALL = 4096


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("tcp4", tmp_path) as made:
        yield made


def express_open(pair: Pair) -> bool:
    return pair.near.stats()["tcp.express_open"] == 1


async def warm(pair: Pair, near: LocalRegion, there: OpenedGrant) -> None:
    """The first ones go the common way, and bring the stream for small ones about."""

    async def once() -> bool:
        await pair.near.submit([read(near, there, SMALL)])
        return express_open(pair)

    await until(once)


async def test_small_transfers_of_many_kinds_arrive(pair: Pair) -> None:
    near, far = pair.near.allocate(4 << 20), pair.far.allocate(4 << 20)
    there = pair.near.open(far.grant("rw"))
    sent = fill(far, 1)
    await warm(pair, near, there)
    threads = pair.near.stats()["tcp.streams_open"]
    for length in (1, SMALL, 300_000, 1 << 20):
        array(near)[:] = 0
        await pair.near.submit([read(near, there, length, at=3, remote_at=5)])
        assert np.array_equal(array(near)[3 : 3 + length], sent[5 : 5 + length])
        assert not array(near)[3 + length :].any()
    mine = fill(near, 2)
    ranges = [(i * 3000, i * 4000, 900 + i) for i in range(200)]
    await pair.near.submit([write(near, there, n, at, to) for at, to, n in ranges])
    for at, to, n in ranges:
        assert np.array_equal(array(far)[to : to + n], mine[at : at + n])
    assert pair.near.stats()["tcp.streams_open"] == threads  # none was opened for these


@pytest.mark.parametrize("is_near", [True, False])
async def test_a_lone_write_of_a_mib_needs_no_thread_within_the_host(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_near: bool
) -> None:
    monkeypatch.setattr(tcp_stream, "is_near", lambda _: is_near)
    sends = 0
    send = tcp_stream.Stream.send

    def counted(stream: tcp_stream.Stream, job: Job) -> None:
        nonlocal sends
        sends += 1
        send(stream, job)

    near, far = pair.near.allocate(4 << 20), pair.far.allocate(4 << 20)
    there = pair.near.open(far.grant("rw"))
    await warm(pair, near, there)
    mine = fill(near, 7)
    monkeypatch.setattr(tcp_stream.Stream, "send", counted)
    await pair.near.submit([write(near, there, 1 << 20, 3, 5)])
    assert np.array_equal(array(far)[5 : 5 + (1 << 20)], mine[3 : 3 + (1 << 20)])
    assert sends == (0 if is_near else 1)
    two = [pair.near.submit([write(near, there, 1 << 20, i << 20, i << 20)]) for i in (2, 3)]
    await asyncio.gather(*two)
    assert np.array_equal(array(far)[2 << 20 :], mine[2 << 20 :])


async def test_more_than_fits_at_once_takes_all_ways_and_arrives(pair: Pair) -> None:
    count, size = 200, 200_000
    near, far = pair.near.allocate(count * size), pair.far.allocate(count * size)
    there = pair.near.open(far.grant("rw"))
    sent = fill(far, 3)
    await warm(pair, near, there)
    batches = [
        pair.near.submit([read(near, there, size, i * size, i * size)]) for i in range(count)
    ]
    await asyncio.gather(*(batch.settled() for batch in batches))
    assert [batch.error(0) for batch in batches] == [None] * count
    assert np.array_equal(array(near), sent)


async def test_reads_and_writes_at_once_do_not_stop_each_other(pair: Pair) -> None:
    """Each side then has much to send that the other does not take at once."""
    near, far = pair.near.allocate(64 << 20), pair.far.allocate(64 << 20)
    there = pair.near.open(far.grant("rw"))
    fill(near, 4)
    fill(far, 5)
    await warm(pair, near, there)
    size = tcp_express.WRITE_FAR_MAX
    batches = []
    for i in range(12):
        at, elsewhere = i * size, (32 << 20) + i * size
        batches.append(pair.near.submit([read(near, there, size, at, at)]))
        batches.append(pair.near.submit([write(near, there, size, elsewhere, elsewhere)]))
    await asyncio.gather(*batches)
    for part in (slice(0, 12 * size), slice(32 << 20, (32 << 20) + 12 * size)):
        assert np.array_equal(array(near)[part], array(far)[part])


async def test_a_refused_grant_costs_its_own_transfer_only(pair: Pair) -> None:
    near, far = pair.near.allocate(1 << 20), pair.far.allocate(1 << 20)
    good, bad = far.grant("rw"), far.grant("rw")
    there, gone = pair.near.open(good), pair.near.open(bad)
    sent = fill(far, 6)
    await warm(pair, near, there)
    far.revoke(bad)
    before = pair.near.submit([read(near, there, 300_000)])
    refused = pair.near.submit([read(near, gone, SMALL, at=400_000)])
    after = pair.near.submit([read(near, there, 300_000, at=500_000, remote_at=500_000)])
    with pytest.raises(GrantRefused):
        await refused
    await before
    await after
    assert np.array_equal(array(near)[:300_000], sent[:300_000])
    assert np.array_equal(array(near)[500_000:800_000], sent[500_000:800_000])
    await warm(pair, near, there)  # the stream it was refused on has a successor


async def test_what_is_not_urgent_leaves_the_small_stream_alone(pair: Pair) -> None:
    near, far = pair.near.allocate(SMALL), pair.far.allocate(SMALL)
    there = pair.near.open(far.grant("r"))
    for _ in range(20):
        await pair.near.submit([read(near, there, SMALL)], priority=Priority.BACKGROUND)
    assert not express_open(pair)


async def test_it_closes_after_a_while_without_work(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_peer, "IDLE_S", 0.2)
    near, far = pair.near.allocate(SMALL), pair.far.allocate(SMALL)
    there = pair.near.open(far.grant("r"))
    await warm(pair, near, there)
    await until(lambda: not express_open(pair))
    await pair.near.submit([read(near, there, SMALL)])


async def test_a_peer_that_stops_costs_the_deadline_and_is_used_again_when_it_wakes(
    tmp_path: Path,
) -> None:
    async with (
        make_pair("tcp4", tmp_path) as pair,
        make_child("tcp4", tmp_path, name="other", length=1 << 20) as child,
    ):
        near = pair.near.allocate(1 << 20)
        there = pair.near.open(child.grant)
        await warm(pair, near, there)
        child.signal(signal.SIGSTOP)
        state = Path(f"/proc/{child.pid}/stat")
        await until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T")
        batch = pair.near.submit([read(near, there, SMALL)], deadline_s=0.2)
        with pytest.raises(TransferTimeout):
            await batch
        assert batch.done
        child.signal(signal.SIGCONT)
        await child.ask("fill 7")
        await pair.near.submit([TransferRequest(Op.READ, near, 0, there, 0, SMALL)])
        assert array(near)[:SMALL].any()


async def series(pair: Pair, near: LocalRegion, there: OpenedGrant, count: int) -> None:
    """One small transfer after the other, each of them right."""
    for i in range(count):
        at = i % 256 * SMALL
        await pair.near.submit([read(near, there, SMALL, at=at, remote_at=at)])


@pytest.fixture
def free_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where nobody else wants a CPU, as far as an engine is told."""
    monkeypatch.setattr(lookout._Load, "running", lambda _: 1)
    monkeypatch.setattr(lookout, "LOOK_MAX_S", 5e-3)  # for slow machines
    monkeypatch.setattr(lookout, "HELD_UP_S", 5e-3)
    monkeypatch.setattr(lookout, "CREDIT_MAX_S", 1.0)
    monkeypatch.setattr(lookout, "WASTE", 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.usefixtures("free_cpus")
async def test_an_answer_that_a_look_took_first_does_not_end_the_stream(tmp_path: Path) -> None:
    """The loop was told of it already, and calls for nothing."""
    async with make_pair("tcp4", tmp_path) as pair:
        near, far = pair.near.allocate(1 << 20), pair.far.allocate(1 << 20)
        there = pair.near.open(far.grant("r"))
        await warm(pair, near, there)
        await series(pair, near, there, 64)
        for _ in range(100):
            served = pair.far.stats()["tcp.served_bytes"]
            batch = pair.near.submit([read(near, there, SMALL)])
            ends_s = time.monotonic() + 5.0
            while pair.far.stats()["tcp.served_bytes"] == served:  # the loop is held meanwhile
                assert time.monotonic() < ends_s
            await batch
            await asyncio.sleep(0)
            assert express_open(pair)


@pytest.mark.usefixtures("free_cpus")
async def test_answers_and_questions_that_come_soon_are_looked_for(tmp_path: Path) -> None:
    async with (
        make_pair("tcp4", tmp_path) as pair,
        make_child("tcp4", tmp_path, name="other", length=1 << 20) as child,
    ):
        near, far = pair.near.allocate(1 << 20), pair.far.allocate(1 << 20)
        there = pair.near.open(far.grant("rw"))
        sent = fill(far, 8)
        await warm(pair, near, there)

        async def both_saw() -> bool:
            await series(pair, near, there, 256)
            return pair.far.stats()["tcp.looks_seen"] > 0  # one process: one of the two looks

        await until(both_saw)
        assert np.array_equal(array(near), sent)
        theirs = pair.near.open(child.grant)
        await child.ask("fill 9")

        async def asker_saw() -> bool:
            before = pair.near.stats()["tcp.looks_seen"]
            await series(pair, near, theirs, 256)
            return pair.near.stats()["tcp.looks_seen"] > before

        await until(asker_saw)


async def test_others_of_the_loop_have_their_turn_between_looks(pair: Pair) -> None:
    near, far = pair.near.allocate(1 << 20), pair.far.allocate(1 << 20)
    there = pair.near.open(far.grant("r"))
    await warm(pair, near, there)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await series(pair, near, there, 200)
    counting.cancel()
    assert turns >= 200


async def test_an_engine_that_is_told_not_to_never_looks(tmp_path: Path) -> None:
    async with make_pair("tcp4", tmp_path, look_out=False) as pair:
        near, far = pair.near.allocate(1 << 20), pair.far.allocate(1 << 20)
        there = pair.near.open(far.grant("r"))
        await warm(pair, near, there)
        await series(pair, near, there, 200)
        assert pair.near.stats()["tcp.looks"] == pair.far.stats()["tcp.looks"] == 0
