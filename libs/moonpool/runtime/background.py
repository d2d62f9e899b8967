"""Tasks that run beside a service's body: none may fail unnoticed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

FATAL = "moonpool_background_task"  # marks such a failure in the loop's exception handler


def background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that is to run until it is cancelled by whoever keeps it. Its failure is a broken
    invariant: the loop's exception handler is told at once, and `run_service` ends the process."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report)
    return task


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels them and waits until they are gone. Idempotent."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    tasks.clear()


def _report(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        context = {"message": f"{task.get_name()} failed", "exception": error, FATAL: task}
        task.get_loop().call_exception_handler(context)
