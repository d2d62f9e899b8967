"""Registered memory of one adapter (MR cache): a region is pinned when it is prepared or first
used, once for all peers, and let go when it is unregistered and nothing uses it any more."""

import threading
from dataclasses import dataclass
from typing import Any

from moonpool.transfer.errors import TransferBusy
from moonpool.transfer.memory import Memory
from moonpool.transfer.pages import wish
from moonpool.transfer.regions import LocalRegion
from moonpool.transfer.transports.rdma_verbs import Verbs


@dataclass(slots=True, eq=False)
class Registration:
    """A region as the adapter knows it. Held by whoever uses it: `release` must follow `take`."""

    region_id: int
    memory: Memory  # keeps the bytes where they are
    mr: Any
    lkey: int
    uses: int = 0
    dead: bool = False  # closes with its last use


class MemoryCache:
    """Thread-safe. Without remote rights: a peer needs a window or a registration of its own. To
    pin and to let go takes the adapter long, and holds up nobody but who waits for that region."""

    def __init__(self, verbs: Verbs, pd: Any) -> None:
        self._verbs = verbs
        self._pd = pd
        enums = verbs.enums
        self._access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_MW_BIND
        self._lock = threading.Lock()
        self._made = threading.Condition(self._lock)
        self._known: dict[int, Registration] = {}
        self._making: dict[int, bool] = {}  # regions; whether they were unregistered meanwhile

    def take(self, region: LocalRegion) -> Registration:
        """May take long for a big region that is new. Raises TransferBusy when the kernel refuses
        to pin so much."""
        with self._lock:
            while region.id in self._making:
                self._made.wait()
            found = self._known.get(region.id)
            if found is not None:
                found.uses += 1
                return found
            self._making[region.id] = False
        try:
            mr = self._register(region)
        except BaseException:
            self._is_made(region.id)
            raise
        with self._lock:
            made = Registration(region.id, region.memory, mr, mr.lkey, uses=1)
            made.dead = self._making[region.id] or region.closing
            if not made.dead:
                self._known[region.id] = made
        self._is_made(region.id)
        return made

    def _register(self, region: LocalRegion) -> Any:
        wish(region.address, region.length)
        try:
            return self._verbs.mr.MR(self._pd, region.length, self._access, address=region.address)
        except self._verbs.error as error:
            raise TransferBusy(f"the adapter takes no more memory: {error}") from error

    def _is_made(self, region_id: int) -> None:
        """Or could not be."""
        with self._lock:
            del self._making[region_id]
            self._made.notify_all()

    def prepare(self, region: LocalRegion) -> None:
        """The region is pinned from now on, until it is unregistered. Blocks, and raises, like
        `take`."""
        self.release(self.take(region))

    def release(self, held: Registration) -> None:
        with self._lock:
            held.uses -= 1
            over = held.dead and not held.uses
        if over:
            held.mr.close()

    def forget(self, region_id: int) -> None:
        """The region is unregistered."""
        with self._lock:
            if region_id in self._making:
                self._making[region_id] = True
            found = self._known.pop(region_id, None)
            if found is None:
                return
            found.dead = True
            over = not found.uses
        if over:
            found.mr.close()

    @property
    def bytes_pinned(self) -> int:
        with self._lock:
            return sum(held.memory.length for held in self._known.values())

    def close(self) -> None:
        """After what is being pinned; the rest goes at once."""
        with self._lock:
            while self._making:
                self._made.wait()
        for region_id in list(self._known):
            self.forget(region_id)
