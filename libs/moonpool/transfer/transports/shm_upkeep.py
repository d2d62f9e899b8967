"""When a link of shm is given up although nothing went wrong on it: a peer that never greets, and
too many links."""

import asyncio
from typing import Protocol
from weakref import ref

from moonpool.transfer.errors import PeerLost
from moonpool.transfer.transports.endpoint_pool import EndpointPool

HANDSHAKE_S = 5.0
RETIRE_LOOK_S = 0.05  # between looks whether a link that must go is idle


class Upkept(Protocol):
    """A link, as far as it is kept here. On the loop."""

    @property
    def greeted(self) -> bool: ...

    @property
    def idle(self) -> bool: ...

    def lose(self, reason: PeerLost) -> None: ...


class Upkeep:
    """Of one link, on the loop; it stands for the link in the pool."""

    def __init__(
        self, link: Upkept, peer: str, pool: EndpointPool, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._link = ref(link)  # it has us, not we it
        self._peer = peer
        self._pool = pool
        self._loop = loop
        self._timers: list[asyncio.TimerHandle] = []

    def connected(self) -> None:
        self._timers.append(self._loop.call_later(HANDSHAKE_S, self._must_be_greeted))
        self._pool.opened(self)

    def used(self) -> None:
        self._pool.used(self)

    def lost(self) -> None:
        """The connection is gone, for whatever reason."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._pool.closed(self)

    def retire(self) -> None:
        """From any thread; see `EndpointPool`."""
        self._loop.call_soon_threadsafe(self._retire)

    def _must_be_greeted(self) -> None:
        link = self._link()
        if link is not None and not link.greeted:
            link.lose(PeerLost(f"{self._peer} did not greet within {HANDSHAKE_S:g} s"))

    def _retire(self) -> None:
        link = self._link()
        if link is not None and link.idle:
            link.lose(PeerLost(f"{self._peer} made room for other peers"))
        elif link is not None:
            self._timers.append(self._loop.call_later(RETIRE_LOOK_S, self._retire))
