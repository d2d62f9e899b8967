"""Who copies what: the loop at once and in steps, threads what is behind it."""

import asyncio
import threading

import pytest

from moonpool.transfer.base import Priority
from moonpool.transfer.transports.joining import join_all
from moonpool.transfer.transports.pool import CopyPool, Whole
from tests.support.until import until


class Steps:
    """Work of so many steps that remembers who did it."""

    def __init__(self, count: int, *, in_steps: bool = True) -> None:
        self.left = count
        self.in_steps = in_steps
        self.by: list[str] = []

    def run(self) -> None:
        self.by.append(threading.current_thread().name)
        self.left = 0

    def step(self) -> bool:
        self.by.append("loop")
        self.left -= 1
        return self.left > 0


async def closed(pool: CopyPool) -> None:
    await join_all(pool.close())


async def test_urgent_work_is_done_on_the_loop_with_rests_for_others() -> None:
    pool = CopyPool("x", 2, asyncio.get_running_loop())
    work, others = Steps(3), 0
    pool.put(work, Priority.FOREGROUND)
    assert work.by == []  # put itself does nothing
    while work.left:
        await asyncio.sleep(0)
        others += 1
    assert work.by == ["loop"] * 3
    assert others >= 3
    assert pool.waiting == 0
    await closed(pool)


@pytest.mark.parametrize(
    ("work", "priority"),
    [(Steps(3), Priority.BACKGROUND), (Steps(3, in_steps=False), Priority.FOREGROUND)],
    ids=["not urgent", "without steps"],
)
async def test_other_work_goes_to_a_thread(work: Steps, priority: Priority) -> None:
    pool = CopyPool("x", 2, asyncio.get_running_loop())
    pool.put(work, priority)
    await until(lambda: not work.left)
    assert work.by == ["moonpool-copy-x-0"]
    await closed(pool)


async def test_loop_and_threads_share_what_waits() -> None:
    pool = CopyPool("x", 1, asyncio.get_running_loop())
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        go_on.wait(10.0)

    pool.put(Whole(hold_up), Priority.BACKGROUND)  # keeps the only thread busy
    await until(begun.is_set)
    works = [Steps(2) for _ in range(5)]
    for work in works:
        pool.put(work, Priority.FOREGROUND)
    await until(lambda: not any(work.left for work in works))
    assert [work.by for work in works] == [["loop"] * 2] * 5
    go_on.set()
    await closed(pool)


async def test_what_the_loop_has_in_hand_ends_when_the_pool_is_closed() -> None:
    pool = CopyPool("x", 2, asyncio.get_running_loop())
    works = [Steps(4), Steps(4)]
    for work in works:
        pool.put(work, Priority.FOREGROUND)
    threads = pool.close()
    assert works[0].left == 0
    await join_all(threads)
    assert works[1].left == 0
    assert pool.waiting == 0
