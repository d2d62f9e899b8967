"""A pool of small buffers: apart from one another, taken back, and no way around a peer's grant."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.transfer import (
    BadTransfer,
    Buffer,
    BufferPool,
    GrantRefused,
    RegionClosed,
    TransferBusy,
    TransferEngine,
)

SIZE = 64 << 10


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[TransferEngine]:
    made = await TransferEngine.start("e", host_id="h", run_dir=tmp_path, transports=("memory",))
    yield made
    await made.close()


@pytest.fixture
async def pool(engine: TransferEngine) -> BufferPool:
    return engine.make_pool(SIZE)


async def test_buffers_never_overlap_whatever_is_taken_and_freed(pool: BufferPool) -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.booleans(), st.integers(1, SIZE // 3)), max_size=60))
    def check(steps: list[tuple[bool, int]]) -> None:
        held: list[Buffer] = []
        for number, (take, length) in enumerate(steps):
            if take or not held:
                try:
                    held.append(pool.take(length))
                except TransferBusy:
                    continue
                held[-1].view[:] = bytes([number % 256]) * length
                held[-1].view[0] = id(held[-1]) % 256
            else:
                buffer = held.pop(length % len(held))
                assert buffer.view[0] == id(buffer) % 256
                buffer.free()
            pool.check()
        for buffer in held:
            assert buffer.view[0] == id(buffer) % 256
            assert len(set(bytes(buffer.view[1:]))) <= 1
            buffer.free()
        assert pool.stats()["bytes_used"] == 0
        assert pool.stats()["hole_max_bytes"] == SIZE

    check()


async def test_buffers_travel_in_both_directions(engine: TransferEngine, pool: BufferPool) -> None:
    theirs = engine.allocate(1000)
    remote = engine.open(theirs.grant("rw"))
    with pool.take(100) as one, pool.take(50) as two:
        one.view[:] = b"x" * 100
        await engine.submit([one.write(remote, 200)])
        await engine.submit([two.read(remote, 250)])
        assert bytes(two.view) == b"x" * 50
        assert bytes(theirs.view[199:301]) == b"\0" + b"x" * 100 + b"\0"


async def test_what_is_full_now_and_what_never_fits_are_told_apart(pool: BufferPool) -> None:
    whole = pool.take(SIZE)
    with pytest.raises(TransferBusy) as raised:
        pool.take(1)
    assert raised.value.retry_after_s > 0
    whole.free()
    whole.free()
    pool.take(1).free()
    never: list[Any] = [0, -5, SIZE + 1, 1.5, "1", None]
    for length in never:
        with pytest.raises(BadTransfer):
            pool.take(length)
    assert pool.stats()["refused"] == 1


async def test_a_freed_buffer_is_of_no_use(pool: BufferPool, engine: TransferEngine) -> None:
    buffer = pool.take(10)
    remote = engine.open(engine.allocate(10).grant("rw"))
    buffer.free()
    for use in (
        lambda: buffer.view,
        lambda: buffer.read(remote),
        lambda: buffer.write(remote),
        lambda: buffer.grant("r"),
    ):
        with pytest.raises(RegionClosed):
            use()


async def test_a_buffer_that_peers_may_reach_is_not_given_to_others(
    pool: BufferPool, engine: TransferEngine
) -> None:
    buffer, near = pool.take(100), engine.allocate(100)
    buffer.view[:] = b"y" * 100
    grant = buffer.grant("r")
    assert (grant.offset, grant.length) == (buffer.offset, 100)
    remote = engine.open(grant)
    with pool.take(100) as other:
        await engine.submit([other.read(remote)])
        assert bytes(other.view) == b"y" * 100
    with pytest.raises(BadTransfer, match="retire"):
        buffer.free()
    await buffer.retire()
    await buffer.retire()
    with pytest.raises(GrantRefused), pool.take(100) as other:
        await engine.submit([other.read(remote)])
    assert not np.frombuffer(near.view, np.uint8).any()


async def test_a_pool_ends_with_its_region(pool: BufferPool) -> None:
    await pool.region.unregister()
    with pytest.raises(RegionClosed):
        pool.take(1)
