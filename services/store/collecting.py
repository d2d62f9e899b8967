"""The garbage collector, kept out of the way while millions of records are made that all stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection inside, in any thread: looking again and again through what only grows would
    take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def settle_for_good() -> None:
    """What exists now is not looked through any more: a full collection over millions of records
    would hold the event loop for a second."""
    gc.freeze()
