"""Copies of many ranges, whole and in steps."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer.base import Op
from moonpool.transfer.copying import STEP_BYTES, copy_slice, copy_steps
from moonpool.transfer.errors import RegionClosed
from moonpool.transfer.job import Job
from moonpool.transfer.slices import Slice


class Memories:
    """Ours and a peer's, and jobs between them."""

    def __init__(self, length: int) -> None:
        random = np.random.default_rng(5)
        self.here = np.zeros(length, np.uint8)
        self.there = random.integers(0, 256, length, dtype=np.uint8)

    def job(self, ranges: list[tuple[int, int, int]], op: Op = Op.READ) -> Job:
        local, remote, lengths = (list(column) for column in zip(*ranges, strict=True))
        made: Any = SimpleNamespace(
            op=op,
            slice=Slice(local, remote, lengths, sum(lengths), 0, len(ranges)),
            local=SimpleNamespace(address=int(self.here.ctypes.data)),
            remote=SimpleNamespace(grant=SimpleNamespace(offset=0)),
            checked=False,
            stopped=None,
        )
        return cast(Job, made)

    @property
    def base(self) -> int:
        return int(self.there.ctypes.data)


@pytest.mark.parametrize(
    "ranges",
    [
        [(5, 9, 100)],
        [(0, 0, STEP_BYTES)],
        [(1, 2, 3 * STEP_BYTES + 7)],
        [(i * 300, i * 500, 201) for i in range(2000)],
        [(i * 70_000, i * 80_000, 65_000) for i in range(50)],
        [(i * 200_000, i * 210_000, 150_000 + i) for i in range(18)] + [(3_900_000, 0, 1)],
    ],
    ids=["one", "a step", "many steps", "thousands of small", "small ones over a step", "mixed"],
)
@pytest.mark.parametrize("op", [Op.READ, Op.WRITE])
def test_every_byte_is_where_it_belongs_and_no_other_has_changed(
    ranges: list[tuple[int, int, int]], op: Op
) -> None:
    memories = Memories(4 * STEP_BYTES)
    expected = {"here": memories.here.copy(), "there": memories.there.copy()}
    for here, there, length in ranges:
        mine, theirs = slice(here, here + length), slice(there, there + length)
        if op is Op.READ:
            expected["here"][mine] = expected["there"][theirs]
        else:
            expected["there"][theirs] = expected["here"][mine]
    assert copy_slice(memories.job(ranges, op), memories.base, "peer") is None
    assert np.array_equal(memories.here, expected["here"])
    assert np.array_equal(memories.there, expected["there"])


def test_there_is_a_rest_after_every_step() -> None:
    memories = Memories(4 * STEP_BYTES)
    rests = 0
    for _ in copy_steps(memories.job([(0, 0, 4 * STEP_BYTES)]), memories.base, "peer"):
        rests += 1
        assert not memories.here[rests * STEP_BYTES :].any()
    assert rests == 3
    assert np.array_equal(memories.here, memories.there)


def test_a_stopped_job_copies_nothing_more_and_says_why() -> None:
    memories = Memories(4 * STEP_BYTES)
    job = memories.job([(0, 0, 4 * STEP_BYTES)])
    steps = copy_steps(job, memories.base, "peer")
    next(steps)
    reason: MoonpoolError = RegionClosed("gone")
    job.stopped = reason
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value is reason
    assert not memories.here[STEP_BYTES:].any()
