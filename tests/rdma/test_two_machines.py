"""Two machines with an adapter each: bytes cross the wire, and either side survives the other's
death and a cut wire. The second machine runs far_machine.py."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import xxhash

from moonpool.messages.segments import RegionGrant
from moonpool.transfer import PeerLost, TransferEngine, TransferTimeout
from tests.contract.transfer_wiring import array, fill, read, write
from tests.support.until import until

SHARED = Path("/vmout")
SIZE = 8 << 20
numbers = itertools.count()


async def far(word: str, what: object = None) -> str:
    """One word to the second machine, and its answer."""
    number = next(numbers)
    partial = SHARED / f"ask.{number}.partial"
    partial.write_text(json.dumps([word, what]))
    partial.rename(SHARED / f"ask.{number}")
    answer = SHARED / f"answer.{number}"
    await until(answer.exists, deadline_s=120.0, every_s=0.05)
    return answer.read_text()


async def far_grant() -> RegionGrant:
    return msgspec.json.decode(await far("start", SIZE), type=RegionGrant)


@pytest.fixture(scope="module", autouse=True)
def second_machine() -> Iterator[None]:
    """Lets it go when all is done."""
    yield
    (SHARED / f"ask.{next(numbers)}").write_text(json.dumps(["quit", None]))


@pytest.fixture
async def near(tmp_path: Path) -> AsyncIterator[TransferEngine]:
    engine = await TransferEngine.start(
        "near", host_id="one", run_dir=tmp_path, listen_host="10.77.0.1", transports=("rdma",)
    )
    yield engine
    await engine.close()


async def test_bytes_cross_both_ways_and_a_killed_machine_is_lost_at_once(
    near: TransferEngine,
) -> None:
    grant = await far_grant()
    assert [e.address.rpartition(":")[0] for e in grant.endpoints] == ["10.77.0.2"]
    local, remote = near.allocate(SIZE), near.open(grant)
    await far("say", "fill 1")
    await near.submit([read(local, remote, SIZE)], deadline_s=60.0)
    assert xxhash.xxh3_64_hexdigest(local.view) == await far("say", "sum")
    fill(local, 2)
    await near.submit([write(local, remote, SIZE)], deadline_s=60.0)
    assert xxhash.xxh3_64_hexdigest(local.view) == await far("say", "sum")

    batches = [near.submit([read(local, remote, SIZE)], deadline_s=60.0) for _ in range(8)]
    await asyncio.sleep(0)
    await far("kill")
    started_s = time.monotonic()
    with pytest.raises(PeerLost):
        await batches[-1]
    for batch in batches:
        await batch.settled()
    assert time.monotonic() - started_s < 15.0
    assert near.stats()["slices_under_way"] == 0
    assert near.stats()["rdma.read.bytes"] >= SIZE

    again = near.open(await far_grant())  # a new life
    await far("say", "fill 3")
    await near.submit([read(local, again, SIZE)], deadline_s=60.0)
    assert xxhash.xxh3_64_hexdigest(local.view) == await far("say", "sum")
    await far("kill")


async def test_a_cut_wire_costs_the_deadline_and_a_healed_one_is_used_again(
    near: TransferEngine,
) -> None:
    grant = await far_grant()
    local, remote = near.allocate(SIZE), near.open(grant)
    await far("say", "fill 4")
    await near.submit([read(local, remote, 4096)], deadline_s=30.0)
    array(local)[:] = 0
    await far("wire", "down")
    batch = near.submit([read(local, remote, SIZE)], deadline_s=3.0)
    started_s = time.monotonic()
    with pytest.raises((PeerLost, TransferTimeout)):
        await batch
    assert time.monotonic() - started_s < 10.0
    assert near.stats()["slices_under_way"] == 0
    await far("wire", "up")

    async def works() -> bool:
        try:
            await near.submit([read(local, remote, SIZE)], deadline_s=10.0)
        except (PeerLost, TransferTimeout):
            return False
        return True

    deadline_s = time.monotonic() + 90.0
    while not await works():
        assert time.monotonic() < deadline_s
    assert xxhash.xxh3_64_hexdigest(local.view) == await far("say", "sum")
