import asyncio
import subprocess
import sys

from moonpool.instance.watchdog import Watchdog
from tests.support.until import until


def test_a_step_that_hangs_is_told_once() -> None:
    told: list[str] = []
    watchdog = Watchdog(3, told.append)
    with watchdog.step():
        for _ in range(10):
            watchdog.tick()
    assert told == ["a step of the engine did not end within 3 s"]


def test_many_steps_are_never_taken_for_one_long_step() -> None:
    told: list[str] = []
    watchdog = Watchdog(3, told.append)
    for _ in range(20):
        with watchdog.step():
            for _ in range(3):
                watchdog.tick()
    assert told == []


def test_waiting_for_work_is_not_hanging() -> None:
    told: list[str] = []
    watchdog = Watchdog(2, told.append)
    with watchdog.step():
        watchdog.tick()
    for _ in range(10):
        watchdog.tick()
    assert told == []


async def test_it_looks_by_itself() -> None:
    told: list[str] = []
    watchdog = Watchdog(1, told.append)
    task = asyncio.create_task(watchdog.run())
    with watchdog.step():
        await until(lambda: bool(told))
    task.cancel()


def test_giving_up_ends_a_process_whose_thread_hangs() -> None:
    program = """
import logging, threading
from moonpool.runtime import give_up
threading.Thread(target=threading.Event().wait).start()
logging.basicConfig()
give_up(logging.getLogger("here"), "a step hangs")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "a step hangs" in done.stderr
