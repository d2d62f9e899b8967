"""When adapters pin what is registered."""

from pathlib import Path

import numpy as np

from tests.contract.transfer_wiring import array, fill, make_pair, read

MIB = 1 << 20


async def test_what_is_prepared_is_pinned_before_anything_moves(tmp_path: Path) -> None:
    async with make_pair("rdma", tmp_path) as pair:
        near, theirs = pair.near.allocate(8 * MIB), pair.far.allocate(8 * MIB)
        for engine, region in ((pair.near, near), (pair.far, theirs)):
            assert engine.stats()["rdma.bytes_pinned"] == 0
            await engine.prepare(region)
            await engine.prepare(region)
            assert engine.stats()["rdma.bytes_pinned"] == 8 * MIB
        sent = fill(theirs, 1)
        await pair.near.submit([read(near, pair.near.open(theirs.grant("r")), 8 * MIB)])
        assert np.array_equal(array(near), sent)
        assert pair.near.stats()["rdma.bytes_pinned"] == 8 * MIB
        await near.unregister()
        assert pair.near.stats()["rdma.bytes_pinned"] == 0
