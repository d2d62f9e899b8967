"""Wires that are cut and mended at random, one at a time, under random transfers: no error, and
every byte is the newest that was written."""

import asyncio
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

from tests.contract.transfer_wiring import array, fill, read, write
from tests.net.conftest import WIRES
from tests.net.links import Host
from tests.net.test_two_links import SIZE, make_pair

pytestmark = pytest.mark.slow
MIB = 1 << 20
LASTS_S = float(os.environ.get("CUTS_S", "4"))
SEED = int(os.environ.get("CUTS_SEED", "7"))


async def cut_and_mend(both: tuple[Host, Host], random_of: random.Random) -> None:
    """Until it is cancelled. Leaves every wire mended."""
    while True:
        await asyncio.sleep(random_of.uniform(0.2, 1.0))
        host, wire = random_of.choice(both), random_of.randrange(WIRES)
        try:
            random_of.choice([host.cut, host.swallow])(wire)
            await asyncio.sleep(random_of.uniform(0.3, 1.5))
        finally:
            host.heal(wire)


async def test_random_cuts_cost_no_error_and_no_byte(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    print(f"seed={SEED}")
    random_of = random.Random(SEED)
    async with make_pair(hosts, 4, tmp_path) as pair:
        truth = fill(pair.local, SEED)
        await pair.engine.submit([write(pair.local, pair.remote, SIZE)])
        trouble = asyncio.create_task(cut_and_mend(hosts, random.Random(SEED + 1)))
        ends_s, view = time.monotonic() + LASTS_S, array(pair.local)
        while time.monotonic() < ends_s:
            at, length = random_of.randrange(SIZE - 12 * MIB), random_of.randint(1, 12 * MIB)
            here = slice(at, at + length)
            if random_of.random() < 0.5:
                truth[here] = view[here] = random_of.randrange(256)
                ask = write(pair.local, pair.remote, length, at, at)
            else:
                view[here] = 0
                ask = read(pair.local, pair.remote, length, at, at)
            await pair.engine.submit([ask], deadline_s=15.0)
            assert np.array_equal(view[here], truth[here])
        trouble.cancel()
        await asyncio.wait([trouble])
        view[:] = 0
        await pair.engine.submit([read(pair.local, pair.remote, SIZE)], deadline_s=15.0)
        assert np.array_equal(view, truth)
        stats = pair.engine.stats()
        assert pair.rests() > 0
        assert stats["slices_under_way"] == stats["tcp.slices_waiting"] == 0
        assert not any(name.startswith("failures") for name in stats)
