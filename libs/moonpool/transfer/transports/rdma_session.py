"""What the owner keeps for one connected peer: its queue pairs, and what it may reach.

Access itself happens without us, so permission is given and taken here: keys are made when a valid
grant is shown, and unmade when it is revoked, expires, or the peer goes.
"""

import threading
import time
from typing import Any

from moonpool.transfer.errors import GrantRefused, TransferBusy
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.transports.rdma_device import Device
from moonpool.transfer.transports.rdma_exposure import (
    Exposer,
    Exposure,
    RegistrationExposer,
    WindowExposer,
)
from moonpool.transfer.transports.rdma_queue import Queue
from moonpool.transfer.transports.rdma_wire import Ask, End, Granted
from moonpool.transfer.wire import STATUS_OF, Status

EXPOSURES_MAX = 4096  # per peer


class Session:
    """Made and closed by one thread; `withdraw` and `unconfirmed` are for any. Raises pyverbs'
    error, ValueError."""

    def __init__(self, device: Device, table: RegionTable, peer: End) -> None:
        self._device = device
        self._table = table
        self._lock = threading.Lock()
        self._exposed: dict[Ask, tuple[Exposure, float]] = {}  # until when (unix time, 0: no end)
        self._making: Ask | None = None
        self._queues: list[Queue] = []
        self._cq: Any = device.verbs.cq.CQ(device.context, 2 * len(peer.queues), None, None, 0)
        self._exposer: Exposer | None = None
        try:
            if device.windows:
                self._exposer = WindowExposer(device, self._cq, self._queues)
            else:
                self._exposer = RegistrationExposer(device, len(peer.queues))
            for its in peer.queues:
                queue = Queue(device, self._exposer.pd, self._cq, 2)
                self._queues.append(queue)
                queue.connect(peer, its, remote_access=True)
        except BaseException:
            self.close()
            raise
        self.end = End(
            gid=device.gid.text,
            lid=device.lid,
            mtu=device.mtu,
            reads_max=device.reads_max,
            queues=[queue.end for queue in self._queues],
        )

    def grant(self, ask: Ask) -> Granted:
        """The keys, if the grant shown is valid."""
        with self._lock:
            self._making = ask
        try:
            return self._grant(ask)
        except GrantRefused as refusal:
            self._drop({ask})
            return Granted(ask, STATUS_OF[refusal.reason])
        except TransferBusy:
            return Granted(ask, Status.BUSY)
        finally:
            with self._lock:
                self._making = None

    def _grant(self, ask: Ask) -> Granted:
        region, rights = self._table.check(ask.region, ask.key, ask.offset, ask.length)
        with self._lock:
            known = self._exposed.get(ask)
            full = len(self._exposed) >= EXPOSURES_MAX
        address = region.address + ask.offset
        if known is not None:
            return Granted(ask, Status.OK, rights, address, known[0].keys)
        if full:
            raise TransferBusy(f"a peer holds {EXPOSURES_MAX} grants")
        assert self._exposer is not None
        exposure = self._exposer.expose(region, ask.offset, ask.length, rights)
        issued = region.issued.get(ask.key)
        with self._lock:
            self._exposed[ask] = (exposure, issued.expires_unix_s if issued else 0.0)
        self._table.check(ask.region, ask.key, ask.offset, ask.length)  # still: else it goes again
        return Granted(ask, Status.OK, rights, address, exposure.keys)

    def expire(self) -> float | None:
        """Ends what has expired. Seconds until it is to be called again; None: not by itself."""
        now_s = time.time()
        with self._lock:
            over = {ask for ask, (_, until) in self._exposed.items() if until and until <= now_s}
        self._drop(over)
        with self._lock:
            ends = [until for _, until in self._exposed.values() if until]
        return max(min(ends) - now_s, 0.001) if ends else None

    def withdraw(self, region: int, key: bytes | None) -> bool:
        """Nothing of the grant, or of the region, is reachable when it returns, but for what
        `unconfirmed` counts. True when the peer had any of it."""
        with self._lock:
            gone = {a for a in self._exposed if a.region == region and key in (None, a.key)}
        self._drop(gone)
        return bool(gone)

    def _drop(self, gone: set[Ask]) -> None:
        with self._lock:
            for ask in gone:
                found = self._exposed.pop(ask, None)
                if found is not None:
                    found[0].close()

    def unconfirmed(self, region: int, key: bytes | None) -> int:
        """1 while a key for it is being made; it will be unmade before the peer could learn it."""
        with self._lock:
            making = self._making
        return int(making is not None and making.region == region and key in (None, making.key))

    @property
    def exposed(self) -> int:
        return len(self._exposed)

    def close(self) -> None:
        """The peer reaches nothing any more. First what is exposed: a window that is still bound to
        it keeps a queue pair from ending."""
        with self._lock:
            everything = set(self._exposed)
        self._drop(everything)
        for queue in self._queues:
            queue.close()
        self._cq.close()
        if self._exposer is not None:
            self._exposer.close()
