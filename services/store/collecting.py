"""The garbage collector, kept out of the way of an event loop with millions of blocks behind it."""

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
    """What exists now is not looked through any more, once per process: the dictionaries and orders
    that will hold a block each, and with them the blocks, which refer to nothing that could be part
    of a cycle. A full collection over all of them would hold the event loop for a second."""
    gc.collect()
    gc.freeze()
