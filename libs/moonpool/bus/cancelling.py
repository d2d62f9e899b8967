"""Cancellations that the client library swallows: seen afterwards, and raised."""

import asyncio


def cancel_marks() -> int:
    """To be handed to `raise_if_cancelled` after a call into the library."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def raise_if_cancelled(marks: int) -> None:
    """A cancellation that meets a reply just as it comes, or a full output buffer, is lost inside:
    whoever goes on in a loop would never end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() > marks:
        raise asyncio.CancelledError
