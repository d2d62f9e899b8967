"""Registered memory of one adapter (MR cache): a region is pinned when it is first used, once for
all peers, and let go when it is unregistered and nothing uses it any more."""

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
    """Thread-safe. Without remote rights: a peer needs a window or a registration of its own."""

    def __init__(self, verbs: Verbs, pd: Any) -> None:
        self._verbs = verbs
        self._pd = pd
        enums = verbs.enums
        self._access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_MW_BIND
        self._lock = threading.Lock()
        self._known: dict[int, Registration] = {}

    def take(self, region: LocalRegion) -> Registration:
        """May take long for a big region that is new. Raises TransferBusy when the kernel refuses
        to pin so much."""
        with self._lock:
            found = self._known.get(region.id)
            if found is not None:
                found.uses += 1
                return found
        wish(region.address, region.length)
        with self._lock:
            found = self._known.get(region.id) or self._register(region)
            found.uses += 1
            return found

    def _register(self, region: LocalRegion) -> Registration:
        try:
            mr = self._verbs.mr.MR(self._pd, region.length, self._access, address=region.address)
        except self._verbs.error as error:
            raise TransferBusy(f"the adapter takes no more memory: {error}") from error
        made = Registration(region.id, region.memory, mr, mr.lkey)
        if region.closing:
            made.dead = True
        else:
            self._known[region.id] = made
        return made

    def release(self, held: Registration) -> None:
        with self._lock:
            held.uses -= 1
            if held.dead and not held.uses:
                held.mr.close()

    def forget(self, region_id: int) -> None:
        """The region is unregistered."""
        with self._lock:
            found = self._known.pop(region_id, None)
            if found is not None:
                found.dead = True
                if not found.uses:
                    found.mr.close()

    @property
    def bytes_pinned(self) -> int:
        with self._lock:
            return sum(held.memory.length for held in self._known.values())

    def close(self) -> None:
        for region_id in list(self._known):
            self.forget(region_id)
