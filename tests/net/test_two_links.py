"""Two hosts with two wires between them: both are used, either may be cut at any moment, and one
that is mended is used again. Real network namespaces, real interfaces."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from moonpool.transfer import LocalRegion, OpenedGrant, TransferEngine
from moonpool.transfer.topology import Topology, parse
from tests.contract.transfer_wiring import Child, array, fill, make_child, read, write
from tests.net.conftest import WIRES
from tests.net.links import Host
from tests.support.until import until

pytestmark = pytest.mark.slow
MIB = 1 << 20
SIZE = 40 * MIB


@contextlib.asynccontextmanager
async def near_engine(
    near: Host, version: int, folder: Path, topology: Topology
) -> AsyncIterator[TransferEngine]:
    engine = await TransferEngine.start(
        "near",
        host_id="near",
        run_dir=folder,
        listen_host=near.addresses(WIRES, version),
        transports=("tcp",),
        topology=topology,
    )
    try:
        yield engine
    finally:
        await engine.close()


class Pair:
    """What one host asks of the other, and what its wires carried meanwhile."""

    def __init__(self, near: Host, engine: TransferEngine, child: Child) -> None:
        self.near = near
        self.engine = engine
        self.child = child
        self.local: LocalRegion = engine.allocate(SIZE)
        self.remote: OpenedGrant = engine.open(child.grant)

    def told(self, wire: int) -> float:
        """Bytes over that wire, as the engine counts."""
        return self.engine.stats()[f"tcp.nic.{self.near.interface(wire)}.bytes"]

    def rests(self) -> float:
        return sum(
            self.engine.stats()[f"tcp.nic.{self.near.interface(wire)}.rests"]
            for wire in range(WIRES)
        )

    async def both_ways(self, seed: int) -> None:
        """All bytes there and back, compared."""
        sent = fill(self.local, seed)
        await self.engine.submit([write(self.local, self.remote, SIZE)], deadline_s=20.0)
        array(self.local)[:] = 0
        await self.engine.submit([read(self.local, self.remote, SIZE)], deadline_s=20.0)
        assert np.array_equal(array(self.local), sent)

    async def with_trouble_on_the_way(self, trouble: Callable[[], None], seed: int) -> None:
        """As `both_ways`, and `trouble()` comes when a quarter has been written."""
        sent = fill(self.local, seed)
        before = sum(self.told(wire) for wire in range(WIRES))
        batch = self.engine.submit([write(self.local, self.remote, SIZE)], deadline_s=20.0)
        await until(lambda: sum(map(self.told, range(WIRES))) - before > SIZE / 4)
        assert not batch.done
        trouble()
        await batch
        array(self.local)[:] = 0
        await self.engine.submit([read(self.local, self.remote, SIZE)], deadline_s=20.0)
        assert np.array_equal(array(self.local), sent)

    async def until_used_again(self, wire: int) -> None:
        before = self.told(wire)

        async def moved() -> bool:
            await self.engine.submit([read(self.local, self.remote, 8 * MIB)], deadline_s=20.0)
            return self.told(wire) - before > MIB

        await until(moved, 15.0)


@contextlib.asynccontextmanager
async def make_pair(
    hosts: tuple[Host, Host], version: int, folder: Path, topology: str = "{}"
) -> AsyncIterator[Pair]:
    near, far = hosts
    there = ("ip", "netns", "exec", far.namespace)
    host = far.addresses(WIRES, version)
    async with (
        make_child("tcp4", folder, length=SIZE, host=host, within=there) as child,
        near_engine(near, version, folder, parse(topology)) as engine,
    ):
        yield Pair(near, engine, child)


@pytest.mark.parametrize("version", [4, 6])
async def test_both_wires_are_used_either_may_go_and_a_mended_one_is_used_again(
    hosts: tuple[Host, Host], version: int, tmp_path: Path
) -> None:
    near, _ = hosts
    async with make_pair(hosts, version, tmp_path) as pair:
        before = [near.moved_bytes(wire) for wire in range(WIRES)]
        await pair.both_ways(seed=1)
        for wire in range(WIRES):
            assert near.moved_bytes(wire) - before[wire] > 0.3 * 2 * SIZE
            assert pair.told(wire) > 0.3 * 2 * SIZE
        assert pair.rests() == 0
        assert pair.engine.stats().get("retries", 0) == 0

        await pair.with_trouble_on_the_way(lambda: near.cut(0), seed=2)
        assert pair.rests() > 0
        assert not any(name.startswith("failures") for name in pair.engine.stats())
        near.heal(0)
        await pair.until_used_again(0)

        await pair.both_ways(seed=3)
        assert min(pair.told(wire) for wire in range(WIRES)) > 0.3 * SIZE


@pytest.mark.parametrize("trouble", ["the far end", "swallowed"])
async def test_a_wire_may_die_in_silence(
    hosts: tuple[Host, Host], trouble: str, tmp_path: Path
) -> None:
    """The near end has no word of it from its kernel: only answers do not come."""
    near, far = hosts
    async with make_pair(hosts, 4, tmp_path) as pair:
        await pair.both_ways(seed=1)
        silence = (lambda: far.cut(1)) if trouble == "the far end" else (lambda: near.swallow(1))
        await pair.with_trouble_on_the_way(silence, seed=2)
        assert not any(name.startswith("failures") for name in pair.engine.stats())
        (far if trouble == "the far end" else near).heal(1)
        await pair.until_used_again(1)


async def test_memory_is_reached_through_the_wire_that_is_near_it(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    near, _ = hosts
    told = '{"cpu:0": [["wire1"], ["wire0"]]}'
    async with make_pair(hosts, 4, tmp_path, told) as pair:
        await pair.both_ways(seed=1)
        assert pair.told(0) == 0
        await pair.with_trouble_on_the_way(lambda: near.cut(1), seed=2)
        assert pair.told(0) > SIZE / 2


async def test_a_mended_wire_brings_nothing_of_what_went_another_way_meanwhile(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """The bytes that were under way when it died would be written over newer ones."""
    near, _ = hosts
    async with make_pair(hosts, 4, tmp_path) as pair:
        await pair.both_ways(seed=1)
        await pair.with_trouble_on_the_way(lambda: near.swallow(1), seed=2)
        newer = fill(pair.local, 3)
        await pair.engine.submit([write(pair.local, pair.remote, SIZE)], deadline_s=20.0)
        near.heal(1)
        await pair.until_used_again(1)
        await asyncio.sleep(2.0)  # in which kernels would send again what they still held
        await pair.engine.submit([read(pair.local, pair.remote, SIZE)], deadline_s=20.0)
        assert np.array_equal(array(pair.local), newer)
