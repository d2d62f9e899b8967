import asyncio
import contextlib

from moonpool.instance.start import end_task


async def test_a_task_that_swallows_a_cancel_is_ended_all_the_same() -> None:
    begun = asyncio.Event()

    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            begun.set()
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(deaf())
    await begun.wait()
    async with asyncio.timeout(10.0):
        await end_task(task)
    assert task.cancelled()
