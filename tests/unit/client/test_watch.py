"""Requests whose responder dies while they wait."""

import asyncio

import pytest

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client import watch


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.01)


async def never() -> str:
    await asyncio.Event().wait()
    return "never"


async def gone() -> None:
    raise NoResponder("mp.store.node-1.get_start")


async def silent() -> None:
    raise RequestTimeout("mp.store.node-1.get_start", 1.0)


async def test_a_dead_responder_ends_the_wait_and_the_task_lives_on() -> None:
    for _ in range(3):
        with pytest.raises(NoResponder):
            await watch.answer_of(never(), gone)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_slow_responder_is_waited_for() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "late"

    assert await watch.answer_of(slow(), silent) == "late"
    assert await watch.answer_of(slow(), never) == "late"


async def test_cancellation_from_outside_is_not_swallowed() -> None:
    task = asyncio.create_task(watch.answer_of(never(), silent))
    await asyncio.sleep(0.03)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_request_itself_comes_through() -> None:
    with pytest.raises(RequestTimeout):
        await watch.answer_of(silent(), never)
