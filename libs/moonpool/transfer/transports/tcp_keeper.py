"""Keeps the number of peers that tcp is connected to within its bound."""

import asyncio
from collections.abc import Callable
from weakref import WeakMethod

from moonpool.transfer.transports.endpoint_pool import EndpointPool


class Keeper:
    """Of one path: it stands for it in the pool."""

    def __init__(self, pool: EndpointPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._retire: WeakMethod[Callable[[], None]] | None = None  # the path has us, not we it

    def on_retire(self, do: Callable[[], None]) -> None:
        """`do`, a method, is called on the loop when the path must go: as soon as it is idle."""
        self._retire = WeakMethod(do)

    def opened(self) -> None:
        """From any thread. The path has a stream now."""
        self._pool.opened(self)

    def used(self) -> None:
        self._pool.used(self)

    def closed(self) -> None:
        """From any thread. It has none any more."""
        self._pool.closed(self)

    def retire(self) -> None:
        """From any thread; see `EndpointPool`."""
        do = self._retire() if self._retire is not None else None
        if do is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(do)
