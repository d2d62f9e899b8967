"""RDMA packets that come late: a WRITE was given up, memory holds something newer, and then the
network delivers what had been on its way."""

import contextlib
import json
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.transfer import TransferCancelled
from moonpool.transfer.transports.rdma_session import Session
from tests.contract.transfer_wiring import Pair, array, fill, make_pair, read, write
from tests.support.until import until

SIZE = 256 << 10
LATE = "2s"
MODULES = ("ifb", "sch_netem", "sch_ingress", "act_mirred", "cls_matchall")


def do(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class SlowWire:
    """What adapters send to rxe1 arrives late, the handshake (over loopback) does not."""

    def __init__(self) -> None:
        do("modprobe", "-a", *MODULES)
        do("ip", "link", "add", "late", "mtu", "9000", "type", "ifb")
        do("ip", "link", "set", "late", "up")
        do("tc", "qdisc", "add", "dev", "v1", "ingress")
        to_late = ("matchall", "action", "mirred", "egress", "redirect", "dev", "late")
        do("tc", "filter", "add", "dev", "v1", "parent", "ffff:", *to_late)
        do("tc", "qdisc", "add", "dev", "late", "root", "netem", "delay", LATE, "limit", "100000")

    def mend(self) -> None:
        """What is sent from now on arrives at once, before what is on its way."""
        do("tc", "qdisc", "change", "dev", "late", "root", "netem", "delay", "0", "limit", "100000")

    def on_its_way(self) -> int:
        """Packets."""
        return int(json.loads(do("tc", "-s", "-j", "qdisc", "show", "dev", "late"))[0]["qlen"])

    def close(self) -> None:
        do("tc", "qdisc", "del", "dev", "v1", "ingress")
        do("ip", "link", "del", "late")


@pytest.fixture
def wire() -> Iterator[SlowWire]:
    with contextlib.closing(SlowWire()) as made:
        yield made


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair("rdma", tmp_path) as made:
        yield made


async def test_a_write_that_was_given_up_has_ended_at_its_owner_before_anybody_hears_of_it(
    pair: Pair, wire: SlowWire
) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    fill(near, 1)
    batch = pair.near.submit([write(near, pair.near.open(far.grant("rw")), SIZE)])
    await until(lambda: wire.on_its_way() > 0)
    batch.cancel()
    with pytest.raises(TransferCancelled):
        await batch
    assert pair.far.stats()["rdma.peers_served"] == 0
    array(far)[:] = 7
    await until(lambda: wire.on_its_way() == 0, deadline_s=30.0)
    assert np.all(array(far) == 7)


async def test_where_the_owner_is_slow_nothing_newer_is_written_before_it_has_ended_the_old(
    pair: Pair, wire: SlowWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_close, really = threading.Event(), Session.close

    def close(self: Session) -> None:
        may_close.wait(10.0)
        really(self)

    monkeypatch.setattr(Session, "close", close)
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    there = pair.near.open(far.grant("rw"))
    fill(near, 1)
    batch = pair.near.submit([write(near, there, SIZE)])
    await until(lambda: wire.on_its_way() > 0)
    batch.cancel()
    with pytest.raises(TransferCancelled):
        await batch
    wire.mend()
    array(near)[:] = 7
    newer = pair.near.submit([write(near, there, SIZE)], deadline_s=30.0)
    try:
        await until(lambda: wire.on_its_way() == 0, deadline_s=30.0)
        assert not newer.done
    finally:
        may_close.set()
    await newer
    assert np.all(array(far) == 7)
    assert pair.far.stats()["rdma.fences"] >= 1


async def test_a_read_that_was_given_up_never_lands(pair: Pair, wire: SlowWire) -> None:
    near, far = pair.near.allocate(SIZE), pair.far.allocate(SIZE)
    fill(far, 2)
    batch = pair.near.submit([read(near, pair.near.open(far.grant("r")), SIZE)])
    await until(lambda: wire.on_its_way() > 0)
    batch.cancel()
    with pytest.raises(TransferCancelled):
        await batch
    array(near)[:] = 7
    await until(lambda: wire.on_its_way() == 0, deadline_s=30.0)
    assert np.all(array(near) == 7)
