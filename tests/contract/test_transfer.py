"""The transfer seam over every transport: bytes arrive, and every request has exactly one end."""

import asyncio
import mmap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.transfer import (
    BadTransfer,
    LocalRegion,
    Op,
    Priority,
    RegionClosed,
    TransferCancelled,
    TransferRequest,
)
from tests.contract.transfer_wiring import (
    PATIENCE,
    WIRINGS,
    Pair,
    array,
    fill,
    kinds,
    make_pair,
    read,
    write,
)

MIB = 1 << 20
LENGTH = 4 * MIB


@pytest.fixture(params=WIRINGS)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair(request.param, tmp_path) as made:
        yield made


@pytest.mark.parametrize("length", [1, 7, 4096, 65_537, MIB, MIB + 1, 20 * MIB + 3])
async def test_a_range_of_any_size_arrives_in_both_directions(pair: Pair, length: int) -> None:
    near, far = pair.near.allocate(length), pair.far.allocate(length)
    remote = pair.near.open(far.grant("rw"))
    sent = fill(far, 1)
    await pair.near.submit([read(near, remote, length)])
    assert np.array_equal(array(near), sent)
    sent = fill(near, 2)
    await pair.near.submit([write(near, remote, length)])
    assert np.array_equal(array(far), sent)


async def test_random_batches_leave_exactly_the_promised_bytes(pair: Pair) -> None:
    near, far = pair.near.allocate(LENGTH), pair.far.allocate(LENGTH)
    remote = pair.near.open(far.grant("rw"))
    loop = asyncio.get_running_loop()

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        requests, expected_near, expected_far = _random_batch(data, near, far, remote)
        asyncio.run_coroutine_threadsafe(_run(pair, requests), loop).result(20)
        assert np.array_equal(array(near), expected_near)
        assert np.array_equal(array(far), expected_far)

    await asyncio.to_thread(check)


async def _run(pair: Pair, requests: list[TransferRequest]) -> None:
    await pair.near.submit(requests)


def _random_batch(data, near, far, remote):  # type: ignore[no-untyped-def]
    """Requests whose targets do not overlap, and what both sides must hold afterwards."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    near_bytes, far_bytes = fill(near, seed), fill(far, seed + 1)
    count = data.draw(st.integers(1, 40))
    cell = LENGTH // 80
    places = random.permutation(80)
    requests = []
    near_after, far_after = near_bytes.copy(), far_bytes.copy()
    for i in range(count):
        length = int(random.integers(1, cell + 1))
        here = int(places[2 * i]) * cell + int(random.integers(0, cell - length + 1))
        there = int(places[2 * i + 1]) * cell + int(random.integers(0, cell - length + 1))
        if random.integers(2):
            requests.append(read(near, remote, length, here, there))
            near_after[here : here + length] = far_bytes[there : there + length]
        else:
            requests.append(write(near, remote, length, here, there))
            far_after[there : there + length] = near_bytes[here : here + length]
    return requests, near_after, far_after


async def test_a_batch_of_two_thousand_scattered_ranges_arrives(pair: Pair) -> None:
    count, size = 2000, 1500
    near, far = pair.near.allocate(count * 2048), pair.far.allocate(count * 2048)
    sent = fill(far, 3)
    remote = pair.near.open(far.grant("r"))
    order = np.random.default_rng(4).permutation(count).tolist()
    requests = [read(near, remote, size, i * 2048, j * 2048) for i, j in enumerate(order)]
    batch = pair.near.submit(requests)
    await batch
    cells, sent_cells = array(near).reshape(count, 2048), sent.reshape(count, 2048)
    assert np.array_equal(cells[:, :size], sent_cells[order][:, :size])
    assert not cells[:, size:].any()
    assert {batch.status(i) for i in range(count)} == {"done"}


async def test_layers_that_lie_side_by_side_travel_as_one_range(pair: Pair) -> None:
    near, far = pair.near.allocate(MIB), pair.far.allocate(MIB)
    sent = fill(far, 5)
    remote = pair.near.open(far.grant("r"))
    await pair.near.submit([read(near, remote, 1024, i * 1024, i * 1024) for i in range(1024)])
    assert np.array_equal(array(near), sent)


async def test_a_grant_on_a_part_counts_offsets_from_its_own_start(pair: Pair) -> None:
    near, far = pair.near.allocate(100), pair.far.allocate(10_000)
    sent = fill(far, 6)
    remote = pair.near.open(far.grant("r", offset=5000, length=100))
    await pair.near.submit([read(near, remote, 50, 50, 50)])
    assert np.array_equal(array(near)[50:], sent[5050:5100])
    assert not array(near)[:50].any()


async def test_many_batches_at_once_do_not_mix(pair: Pair) -> None:
    cell, count = 96 * 1024, 40
    near, far = pair.near.allocate(cell * count), pair.far.allocate(cell * count)
    sent = fill(far, 7)
    remote = pair.near.open(far.grant("rw"))
    priorities = [Priority.FOREGROUND, Priority.BACKGROUND]
    batches = [
        pair.near.submit(
            [read(near, remote, cell, i * cell, (count - 1 - i) * cell)], priority=priorities[i % 2]
        )
        for i in range(count)
    ]
    for batch in batches:
        await batch
    assert np.array_equal(array(near).reshape(count, cell), sent.reshape(count, cell)[::-1])


async def test_both_sides_may_ask_at_the_same_time(pair: Pair) -> None:
    size = 8 * MIB
    near_in, near_out = pair.near.allocate(size), pair.near.allocate(size)
    far_in, far_out = pair.far.allocate(size), pair.far.allocate(size)
    near_sent, far_sent = fill(near_out, 8), fill(far_out, 9)
    to_far = pair.near.open(far_in.grant("w"))
    to_near = pair.far.open(near_in.grant("w"))
    one = pair.near.submit([write(near_out, to_far, size)])
    two = pair.far.submit([write(far_out, to_near, size)])
    await one
    await two
    assert np.array_equal(array(far_in), near_sent)
    assert np.array_equal(array(near_in), far_sent)


async def test_reads_and_writes_of_one_batch_both_happen(pair: Pair) -> None:
    size = 12 * MIB
    near, far = pair.near.allocate(2 * size), pair.far.allocate(2 * size)
    near_sent, far_sent = fill(near, 10), fill(far, 11)
    remote = pair.near.open(far.grant("rw"))
    await pair.near.submit([write(near, remote, size, 0, 0), read(near, remote, size, size, size)])
    assert np.array_equal(array(far)[:size], near_sent[:size])
    assert np.array_equal(array(near)[size:], far_sent[size:])


async def test_an_engine_reaches_its_own_regions_too(pair: Pair) -> None:
    one, two = pair.near.allocate(MIB), pair.near.allocate(MIB)
    sent = fill(two, 12)
    await pair.near.submit([read(one, pair.near.open(two.grant("r")), MIB)])
    assert np.array_equal(array(one), sent)


def _memory_of_the_callers(kind: str) -> Any:
    if kind == "torch":
        import torch  # here, since it takes long and only this needs it

        return torch.zeros(MIB // 2, dtype=torch.bfloat16)
    if kind == "mmap":
        return mmap.mmap(-1, MIB)
    return bytearray(MIB) if kind == "bytearray" else np.zeros(MIB // 4, np.float32)


@pytest.mark.parametrize("kind", ["bytearray", "numpy", "torch", "mmap"])
async def test_memory_of_the_callers_can_be_the_local_side(pair: Pair, kind: str) -> None:
    made = _memory_of_the_callers(kind)
    near, far = pair.near.register_memory(made), pair.far.allocate(MIB)
    sent = fill(far, 13)
    await pair.near.submit([read(near, pair.near.open(far.grant("r")), MIB)])
    if kind == "torch":
        made = made.view(made.new_empty(0).byte().dtype).numpy()
    assert np.array_equal(np.frombuffer(made, np.uint8), sent)


async def test_one_opened_grant_is_opened_once(pair: Pair) -> None:
    grant = pair.far.allocate(MIB).grant("r")
    assert pair.near.open(grant) is pair.near.open(grant)


async def test_an_empty_batch_is_done_at_once(pair: Pair) -> None:
    batch = pair.near.submit([])
    await batch
    assert batch.done


@pytest.mark.parametrize(
    ("at", "remote_at", "length"),
    [(0, 0, 0), (0, 0, -1), (-1, 0, 5), (0, -1, 5), (95, 0, 6), (0, 95, 6), (0, 0, 1 << 62),
     (1 << 70, 0, 1)],
)  # fmt: skip
async def test_a_request_outside_its_ranges_starts_nothing(
    pair: Pair, at: int, remote_at: int, length: int
) -> None:
    near, far = pair.near.allocate(100), pair.far.allocate(100)
    fill(far, 14)
    remote = pair.near.open(far.grant("r"))
    good, bad = read(near, remote, 10), read(near, remote, length, at, remote_at)
    with pytest.raises(BadTransfer):
        pair.near.submit([good, bad])
    assert not array(near).any()
    assert pair.near.stats()["slices_under_way"] == 0


async def test_a_cancelled_batch_ends_and_touches_nothing_afterwards(pair: Pair) -> None:
    size = 64 * MIB
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    array(far)[:] = 255
    remote = pair.near.open(far.grant("r"))
    batch = pair.near.submit([read(near, remote, size)])
    batch.cancel()
    batch.cancel()
    with pytest.raises(TransferCancelled):
        await batch
    assert batch.done
    assert batch.status(0) == "cancelled"
    seen = array(near).sum(dtype=np.int64)
    await pair.near.submit([read(near, remote, 1, size - 1, size - 1)])
    assert array(near)[:-1].sum(dtype=np.int64) == seen
    assert pair.near.stats()["slices_under_way"] == 0


async def test_a_cancelled_task_returns_only_when_its_memory_is_at_rest(pair: Pair) -> None:
    size = 64 * MIB
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    remote = pair.near.open(far.grant("r"))
    batch = pair.near.submit([read(near, remote, size)])

    async def wait() -> None:
        await batch

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert batch.done


async def test_unregister_waits_for_transfers_and_then_refuses(pair: Pair) -> None:
    size = 48 * MIB
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    sent = fill(far, 15)
    remote = pair.near.open(far.grant("r"))
    batch = pair.near.submit([read(near, remote, size)], deadline_s=10.0 * PATIENCE)
    await near.unregister(timeout_s=5.0 * PATIENCE)
    assert batch.done
    assert batch.error(0) is None
    assert np.array_equal(array(near), sent)
    with pytest.raises(RegionClosed):
        pair.near.submit([read(near, remote, size)])
    with pytest.raises(RegionClosed):
        near.grant("r")


async def test_views_outlive_their_region_and_engine(pair: Pair) -> None:
    near = pair.near.allocate(MIB)
    view = near.view
    await near.unregister()
    await pair.near.close()
    view[:4] = b"same"
    assert bytes(view[:4]) == b"same"


async def test_a_closed_engine_ends_what_is_under_way(pair: Pair) -> None:
    size = 64 * MIB
    near, far = pair.near.allocate(size), pair.far.allocate(size)
    batch = pair.near.submit([read(near, pair.near.open(far.grant("r")), size)])
    await pair.near.close()
    assert batch.done
    with pytest.raises(RegionClosed):
        await batch
    with pytest.raises(RegionClosed):
        pair.near.submit([])


async def test_what_moved_is_counted_by_transport_and_direction(pair: Pair) -> None:
    near, far = pair.near.allocate(1000), pair.far.allocate(1000)
    remote = pair.near.open(far.grant("rw"))
    await pair.near.submit([read(near, remote, 600), write(near, remote, 400)])
    (name,) = kinds(pair.wiring)
    stats = pair.near.stats()
    assert stats[f"{name}.read.bytes"] == 600
    assert stats[f"{name}.write.bytes"] == 400
    assert stats[f"{name}.read.seconds"] > 0


async def test_new_memory_is_zeroed_and_belongs_to_one_region(pair: Pair) -> None:
    one, two = pair.near.allocate(5 * MIB), pair.near.allocate(5 * MIB)
    assert not array(one).any()
    fill(one, 16)
    assert not array(two).any()
    with pytest.raises(BadTransfer):
        pair.near.allocate(0)


async def test_foreign_regions_are_no_side_of_a_transfer(pair: Pair) -> None:
    near, far = pair.near.allocate(10), pair.far.allocate(10)
    remote = pair.near.open(far.grant("r"))
    with pytest.raises(BadTransfer):
        pair.near.submit([TransferRequest(Op.READ, far, 0, remote, 0, 10)])
    assert isinstance(near, LocalRegion)
