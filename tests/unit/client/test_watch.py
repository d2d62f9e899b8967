"""Requests whose responder dies, or stands still, while they wait."""

import asyncio
import time

import pytest

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client import watch
from moonpool.messages import PeerError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.01)
    monkeypatch.setattr(watch, "AGAIN_S", 0.01)


async def never() -> str:
    await asyncio.Event().wait()
    return "never"


async def slow() -> str:
    await asyncio.sleep(0.05)
    return "late"


async def here() -> None:
    return


async def gone() -> None:
    raise NoResponder("mp.store.node-1.get_end")


async def silent() -> None:
    raise RequestTimeout("mp.store.node-1.get_end", 1.0)


async def strange() -> None:
    raise PeerError("what was that?")


@pytest.mark.parametrize(("is_there", "error"), [(gone, NoResponder), (silent, RequestTimeout)])
async def test_who_is_gone_or_silent_ends_the_wait_and_the_task_lives_on(
    is_there: watch.IsThere, error: type[PeerError]
) -> None:
    for _ in range(3):
        with pytest.raises(error):
            await watch.answer_of(never(), is_there)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("is_there", [here, strange, never])
async def test_a_slow_responder_that_is_there_is_waited_for(is_there: watch.IsThere) -> None:
    assert await watch.answer_of(slow(), is_there) == "late"


async def test_a_responder_that_was_there_and_dies_later_ends_the_wait() -> None:
    asked = 0

    async def is_there() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            await gone()

    with pytest.raises(NoResponder):
        await watch.answer_of(never(), is_there)


async def test_cancellation_from_outside_is_not_swallowed() -> None:
    watched = asyncio.Event()

    async def is_there() -> None:
        watched.set()

    task = asyncio.create_task(watch.answer_of(never(), is_there))
    await asyncio.wait_for(watched.wait(), 5.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_request_itself_comes_through() -> None:
    with pytest.raises(RequestTimeout):
        await watch.answer_of(silent(), never)


async def test_silence_is_told_from_an_answer_and_its_error_comes_through() -> None:
    assert await watch.is_answered(slow(), 5.0)
    assert not await watch.is_answered(never(), 0.01)
    with pytest.raises(NoResponder):
        await watch.is_answered(gone(), 5.0)


async def test_an_answer_that_came_while_our_own_loop_was_held_up_is_heard() -> None:
    loop = asyncio.get_running_loop()

    async def answered_by_a_thread() -> None:
        await loop.run_in_executor(None, time.sleep, 0.02)
        await asyncio.sleep(0)  # and passed on in turns of the loop
        await asyncio.sleep(0)

    loop.call_later(0.005, time.sleep, 0.2)
    assert await watch.is_answered(answered_by_a_thread(), 0.1)
