"""What callers and peers hand in: named, placed and granted properly, or refused."""

import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from moonpool.messages.codec import decode, encode
from moonpool.messages.keyed import LineReply
from moonpool.messages.segments import RegionGrant
from moonpool.transfer import BadTransfer, LocalRegion, Op, TransferEngine, TransferRequest
from moonpool.transfer.arguments import check_grant, number, seconds
from moonpool.transfer.regions import Pass
from moonpool.transfer.transports.rdma_wire import Ask
from moonpool.transfer.transports.shm_wire import Kind, Message
from moonpool.transfer.wire import Frame, WireOp


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[TransferEngine]:
    made = await TransferEngine.start("e", host_id="h", run_dir=tmp_path, transports=("memory",))
    yield made
    await made.close()


@pytest.mark.parametrize("location", ["", "cpu:0", "cpu:17", "cuda:0", "npu:3"])
async def test_memory_is_near_what_a_topology_can_name(
    engine: TransferEngine, location: str
) -> None:
    assert engine.allocate(10, location).location == location
    assert engine.register_memory(bytearray(10), location).location == location
    assert engine.make_pool(4096, location).region.location == location


@pytest.mark.parametrize("location", ["*", "nvme:/x", "nonsense", "cpu", "cpu:-1", "cpu:01", 5])
async def test_memory_is_nowhere_else(engine: TransferEngine, location: Any) -> None:
    for place in (engine.allocate, engine.make_pool):
        with pytest.raises(BadTransfer):
            place(10, location)
    with pytest.raises(BadTransfer):
        engine.register_memory(bytearray(10), location)
    assert engine.stats()["regions"] == 0


@pytest.mark.parametrize("length", [0, -1, 1 << 70, (1 << 56) + 1, 1.5, "10", None])
async def test_a_length_that_no_memory_has_is_refused(engine: TransferEngine, length: Any) -> None:
    with pytest.raises(BadTransfer):
        engine.allocate(length)


async def test_more_memory_than_there_is_room_for_is_the_kernels_to_refuse(
    engine: TransferEngine,
) -> None:
    with pytest.raises(OSError, match="mmap"):
        engine.allocate(1 << 55)
    assert engine.stats()["regions"] == 0


@pytest.mark.parametrize("ttl_s", [-5, -0.001, math.nan, math.inf, -math.inf, "5", None])
async def test_a_grant_lives_for_a_span_that_can_end(engine: TransferEngine, ttl_s: Any) -> None:
    region = engine.allocate(10)
    with pytest.raises(BadTransfer):
        region.grant("r", ttl_s=ttl_s)
    assert engine.stats()["grants"] == 0


async def test_a_grant_ends_when_it_was_told_to(engine: TransferEngine) -> None:
    region = engine.allocate(10)
    assert region.grant("r").expires_unix_s == region.grant("r", ttl_s=0).expires_unix_s == 0.0
    now_s = time.time()
    for ttl_s in (1e-6, 5, np.float32(5.0)):
        assert region.grant("r", ttl_s=ttl_s).expires_unix_s > now_s


@pytest.mark.parametrize("odd", [{"offset": 1.5}, {"offset": "0"}, {"length": 2.0}])
async def test_a_grant_begins_and_ends_at_a_byte(engine: TransferEngine, odd: Any) -> None:
    region = engine.allocate(10)
    with pytest.raises(BadTransfer):
        region.grant("r", **odd)
    granted = region.grant("r", offset=np.int64(2), length=np.int64(3))  # type: ignore[arg-type]
    assert decode(encode(granted), RegionGrant) == granted


async def test_every_grant_that_an_owner_issues_can_be_opened(engine: TransferEngine) -> None:
    region = engine.allocate(4096)
    for rights in ("r", "w", "rw"):
        for ttl_s in (0.0, 3.0):
            granted = region.grant(rights, offset=10, length=20, ttl_s=ttl_s)
            check_grant(decode(encode(granted), RegionGrant))
            engine.open(granted)
    for odd in (None, "grant", msgspec.structs.asdict(granted)):
        with pytest.raises(BadTransfer):
            check_grant(odd)


async def test_withdrawing_ends_even_when_no_time_is_told(engine: TransferEngine) -> None:
    region = engine.allocate(10)
    held = engine._table.enter_local(region, lambda: engine._table.leave(held))
    await region.unregister(timeout_s=math.nan)
    assert not region.inside


async def test_no_key_is_ever_printed(engine: TransferEngine) -> None:
    region: LocalRegion = engine.allocate(4096)
    granted = region.grant("rw", ttl_s=5.0)
    remote = engine.open(granted)
    held = Pass(region, granted.key, lambda: None)
    region.inside.add(held)
    request = TransferRequest(Op.READ, region, 0, remote, 0, 10)
    frame = Frame(WireOp.READ, 1, 1, granted.region, 10, granted.key, 0, 10)
    ask = Message(Kind.ATTACH, granted.region, granted.key)
    line = LineReply(granted.key, granted, 5.0)
    for each in (
        region,
        granted,
        remote,
        held,
        request,
        frame,
        ask,
        line,
        Ask(1, granted.key, 0, 10),
        [granted],
    ):
        for text in (repr(each), str(each), f"{each}"):
            assert repr(granted.key)[2:-1] not in text
            assert granted.key.hex() not in text
    assert "e/1" in repr(granted)
    assert "4096" in repr(region)
    region.inside.clear()


def test_whole_numbers_and_spans() -> None:
    assert type(number(np.int8(5), "n")) is int
    assert type(seconds(np.float32(0.5), "s")) is float
    assert seconds(0, "s", above_zero=False) == 0.0
    for odd in (0, -1, math.nan, math.inf, "1", None):
        with pytest.raises(BadTransfer, match="patience"):
            seconds(odd, "patience")
    with pytest.raises(BadTransfer, match=r"xxx\.\.\."):
        number("x" * 1000, "n")
