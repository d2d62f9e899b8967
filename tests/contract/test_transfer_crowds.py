"""Many at once, over every transport: huge batches, overlaps, several peers, owners that leave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.transfer import (
    GrantRefused,
    LocalRegion,
    OpenedGrant,
    PeerLost,
    Priority,
    TransferCancelled,
    TransferEngine,
    TransferRequest,
)
from tests.contract.transfer_wiring import (
    IN_VM,
    WIRINGS,
    Bytes,
    Pair,
    array,
    fill,
    make_pair,
    read,
    start_engine,
    write,
)

MIB = 1 << 20
BATCH = 10_000
LIGHT = 5 if IN_VM else 1  # emulated adapters in an emulated machine carry less


@pytest.fixture(params=WIRINGS)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair(request.param, tmp_path) as made:
        yield made


async def test_a_batch_of_ten_thousand_arrives_whole(pair: Pair) -> None:
    cell = 512
    near, far = pair.near.allocate(BATCH * cell), pair.far.allocate(BATCH * cell)
    sent, before = fill(far, 1), fill(near, 2)
    remote = pair.near.open(far.grant("rw"))
    places = np.random.default_rng(3).permutation(BATCH).tolist()
    lengths = np.random.default_rng(4).integers(1, cell + 1, BATCH).tolist()
    batch = pair.near.submit(
        [
            read(near, remote, n, i * cell, j * cell)
            for i, (j, n) in enumerate(zip(places, lengths, strict=True))
        ],
        deadline_s=60.0,
    )
    await batch
    got, cells = array(near).reshape(BATCH, cell), sent.reshape(BATCH, cell)
    mine = np.arange(cell)[None, :] < np.array(lengths)[:, None]
    assert np.array_equal(got, np.where(mine, cells[places], before.reshape(BATCH, cell)))
    assert len(batch) == BATCH
    assert all(batch.status(i) == "done" for i in range(0, BATCH, 997))


async def test_ten_thousand_in_both_directions_with_some_that_fail(pair: Pair) -> None:
    """Each request has an end of its own: a refused grant spoils only what used it."""
    count, cell = BATCH // LIGHT, 256
    near, far = pair.near.allocate(count * cell), pair.far.allocate(count * cell)
    far_sent, near_sent = fill(far, 5), fill(near, 6)
    good, gone = far.grant("rw"), far.grant("rw")
    far.revoke(gone)
    remote, refused_one = pair.near.open(good), pair.near.open(gone)
    requests = [
        (read if i % 2 else write)(
            near, refused_one if i % 100 == 0 else remote, cell, i * cell, i * cell
        )
        for i in range(count)
    ]
    batch = pair.near.submit(requests, deadline_s=60.0)
    with pytest.raises(GrantRefused):
        await batch
    for i in range(0, count, 50):
        assert batch.status(i) == ("failed" if i % 100 == 0 else "done"), i
    near_cells, far_cells = array(near).reshape(count, cell), array(far).reshape(count, cell)
    for i in range(count):
        origin = far_sent if i % 2 or i % 100 == 0 else near_sent
        assert np.array_equal(far_cells[i], origin.reshape(count, cell)[i])
        origin = far_sent if i % 2 else near_sent
        assert np.array_equal(near_cells[i], origin.reshape(count, cell)[i])


async def test_sources_may_overlap_in_any_way(pair: Pair) -> None:
    size, count = 64 << 10, 30
    near, far = pair.near.allocate(size * count), pair.far.allocate(size)
    remote = pair.near.open(far.grant("r"))
    loop = asyncio.get_running_loop()

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        random = np.random.default_rng(seed)
        sent, expected = fill(far, seed), fill(near, seed + 1)
        requests = []
        for i in range(count):
            length = int(random.integers(1, size + 1))
            at = int(random.integers(0, size - length + 1))
            requests.append(read(near, remote, length, i * size, at))
            expected[i * size : i * size + length] = sent[at : at + length]
        asyncio.run_coroutine_threadsafe(_run(pair.near, requests), loop).result(20)
        assert np.array_equal(array(near), expected)

    await asyncio.to_thread(check)


async def _run(engine: TransferEngine, requests: list[TransferRequest]) -> None:
    await engine.submit(requests)


async def test_targets_that_overlap_hold_one_of_the_senders_and_nothing_else(pair: Pair) -> None:
    """The order is not promised; that no third value and no byte beside them appears, is."""
    size, count = 100_000, 6
    near, far = pair.near.allocate(size * count), pair.far.allocate(3 * size)
    for i in range(count):
        array(near)[i * size : (i + 1) * size] = i + 1
    remote = pair.near.open(far.grant("w"))
    await pair.near.submit([write(near, remote, size, i * size, size) for i in range(count)])
    middle = array(far)[size : 2 * size]
    assert set(np.unique(middle).tolist()) <= set(range(1, count + 1))
    assert not array(far)[:size].any()
    assert not array(far)[2 * size :].any()


async def test_tasks_at_once_each_see_their_own_bytes(pair: Pair) -> None:
    tasks, rounds, size = 12, 12 // LIGHT, 300_000
    near, far = pair.near.allocate(tasks * size), pair.far.allocate(tasks * size)
    remote = pair.near.open(far.grant("rw"))

    async def one(task: int) -> None:
        random = np.random.default_rng(task)
        mine = slice(task * size, (task + 1) * size)
        for number in range(rounds):
            sent = random.integers(0, 256, size, dtype=np.uint8)
            array(near)[mine] = sent
            length = int(random.integers(1, size))
            priority = Priority.BACKGROUND if number % 3 == 0 else Priority.FOREGROUND
            at = task * size
            await pair.near.submit([write(near, remote, length, at, at)], priority=priority)
            array(near)[mine] = 0
            await pair.near.submit([read(near, remote, length, at, at)], priority=priority)
            assert np.array_equal(array(near)[at : at + length], sent[:length])

    async with asyncio.TaskGroup() as group:
        for task in range(tasks):
            group.create_task(one(task))
    assert pair.near.stats()["slices_under_way"] == 0


async def test_several_engines_use_one_owner_at_once(pair: Pair) -> None:
    size, count = MIB, 3
    far = pair.far.allocate(size * count)
    sent = fill(far, 7)
    async with contextlib.AsyncExitStack() as stack:
        askers = [pair.near]
        for i in range(1, 1 if IN_VM else count):
            asker = await start_engine(f"near-{i}", pair.wiring, pair.folder)
            stack.push_async_callback(asker.close)
            askers.append(asker)

        async def ask(asker: TransferEngine, place: int) -> Bytes:
            local = asker.allocate(size)
            remote = asker.open(far.grant("r", offset=place * size, length=size))
            for _ in range(5):
                await asker.submit([read(local, remote, size)])
            return array(local)

        got = await asyncio.gather(*(ask(asker, i) for i, asker in enumerate(askers)))
        for i, each in enumerate(got):
            assert np.array_equal(each, sent[i * size : (i + 1) * size])


async def _ends(engine: TransferEngine, requests: list[TransferRequest]) -> Exception | None:
    try:
        await engine.submit(requests, deadline_s=20.0)
    except (GrantRefused, PeerLost) as error:
        return error
    return None


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_an_owner_that_unregisters_is_left_alone_once_it_is_told(
    pair: Pair, kind: str
) -> None:
    """Drained or refused: whatever the batches end in, afterwards the memory is the owner's."""
    size = 16 * MIB // LIGHT
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    array(near)[:] = 7
    array(far)[:] = 9
    remote = pair.near.open(far.grant("rw"))
    ask = read if kind == "read" else write
    await pair.near.submit([ask(near, remote, 4096)])
    under_way = [asyncio.create_task(_ends(pair.near, [ask(near, remote, size)])) for _ in range(6)]
    await asyncio.sleep(0)
    await far.unregister()
    array(far)[:] = 3
    ends = await asyncio.gather(*under_way)
    assert set(np.unique(array(far)).tolist()) == {3}
    if kind == "read":
        assert set(np.unique(array(near)).tolist()) <= {7, 9}
        if None in ends:
            assert not (array(near) == 7).any()
    assert isinstance(await _ends(pair.near, [ask(near, remote, 10)]), GrantRefused)
    assert pair.far.stats()["transfers_inside"] == 0


async def test_refused_and_revoked_neighbours_cost_others_nothing(pair: Pair) -> None:
    """A stream that a refusal ends, or a revocation cuts, takes innocent slices along: they are
    tried again, as often as it happens."""
    size = 300 << 10
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    good, revoked = pair.near.open(far.grant("r")), far.grant("r")
    far.revoke(revoked)
    stale = pair.near.open(revoked)
    for _ in range(20 // LIGHT):
        leaving = far.grant("r")
        going = pair.near.open(leaving)
        under_way = [
            asyncio.create_task(_ends(pair.near, [read(near, remote, size)]))
            for remote in (stale, stale, going, stale, good) * 4
        ]
        await asyncio.sleep(0)
        far.revoke(leaving)
        ends = await asyncio.gather(*under_way)
        assert ends[4::5] == [None] * 4
        assert all(isinstance(end, GrantRefused) for end in ends[::5])


async def test_a_cancelled_crowd_leaves_others_alone(pair: Pair) -> None:
    size = 4 * MIB // LIGHT
    near, far = pair.near.allocate(8 * size), pair.far.allocate(8 * size)
    sent = fill(far, 8)
    remote = pair.near.open(far.grant("r"))
    batches = [pair.near.submit([read(near, remote, size, i * size, i * size)]) for i in range(8)]
    for batch in batches[::2]:
        batch.cancel()
    for i, batch in enumerate(batches):
        if i % 2:
            await batch
            assert np.array_equal(
                array(near)[i * size : (i + 1) * size], sent[i * size : (i + 1) * size]
            )
        else:
            with contextlib.suppress(TransferCancelled):
                await batch
    assert pair.near.stats()["slices_under_way"] == 0


def _all(near: LocalRegion, remote: OpenedGrant, size: int) -> list[TransferRequest]:
    return [read(near, remote, size)]


async def test_more_slices_than_an_engine_holds_are_refused_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moonpool.transfer import TransferBusy

    monkeypatch.setattr("moonpool.transfer.engine.JOBS_MAX", 4)
    size = 40 * MIB
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    remote = pair.near.open(far.grant("r"))
    with pytest.raises(TransferBusy):
        pair.near.submit(_all(near, remote, size))
    assert pair.near.stats()["slices_under_way"] == 0
    assert not array(near).any()
    await pair.near.submit(_all(near, remote, 64 << 10))
