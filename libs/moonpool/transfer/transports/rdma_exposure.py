"""How a granted range becomes reachable for one peer, and stops being so.

Both ways give keys that work on the queue pairs of that peer alone, within the grant's rights, and
until `close`, which returns when no access is under way any more: the adapter enforces it, whatever
the peer does.

* A memory window (type 2B) over the region's registration: cheap, so it is taken where the adapter
  has them and keeps their bounds.
* A registration of just that range in a protection domain of the peer's own: exact everywhere, but
  pins the pages once more per grant and peer.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from moonpool.transfer.errors import TransferBusy
from moonpool.transfer.pages import wish
from moonpool.transfer.regions import LocalRegion
from moonpool.transfer.transports.rdma_device import Device
from moonpool.transfer.transports.rdma_memory import Registration
from moonpool.transfer.transports.rdma_queue import Queue

BIND_S = 2.0
_POLL_S = 0.00005


class Exposure(Protocol):
    keys: list[int]  # one per queue pair of the peer

    def close(self) -> None:
        """Idempotent."""


class Exposer(Protocol):
    """Makes the exposures of one peer."""

    pd: Any  # of the peer's queue pairs

    def expose(self, region: LocalRegion, offset: int, length: int, rights: str) -> Exposure:
        """Raises TransferBusy."""

    def close(self) -> None:
        """After all exposures and queue pairs."""


def _access(device: Device, rights: str) -> int:
    enums = device.verbs.enums
    access = 0
    if "r" in rights:
        access |= int(enums.IBV_ACCESS_REMOTE_READ)
    if "w" in rights:
        access |= int(enums.IBV_ACCESS_REMOTE_WRITE)
    return access


class _Windows:
    def __init__(self, device: Device, held: Registration) -> None:
        self._device = device
        self._held: Registration | None = held
        self.windows: list[Any] = []
        self.keys: list[int] = []

    def close(self) -> None:
        for window in self.windows:
            window.close()
        self.windows.clear()
        if self._held is not None:
            self._device.memory.release(self._held)
            self._held = None


class WindowExposer:
    def __init__(self, device: Device, cq: Any, queues: Sequence[Queue]) -> None:
        self.pd = device.pd
        self._device = device
        self._cq = cq
        self._queues = queues

    def expose(self, region: LocalRegion, offset: int, length: int, rights: str) -> Exposure:
        held = self._device.memory.take(region)
        made = _Windows(self._device, held)
        access = _access(self._device, rights)
        verbs = self._device.verbs
        try:
            info = verbs.mr.MWBindInfo(held.mr, region.address + offset, length, access)
            for queue in self._queues:
                window = verbs.mr.MW(self.pd, verbs.enums.IBV_MW_TYPE_2)
                made.windows.append(window)
                made.keys.append(self._bind(queue, window, info))
        except (verbs.error, TransferBusy) as error:
            made.close()
            raise TransferBusy(f"no memory window: {error}") from error
        return made

    def _bind(self, queue: Queue, window: Any, info: Any) -> int:
        verbs = self._device.verbs
        enums = verbs.enums
        request = verbs.wr.SendWR(
            opcode=enums.IBV_WR_BIND_MW, num_sge=0, send_flags=enums.IBV_SEND_SIGNALED
        )
        try:
            request.set_bind_wr(window, info)
            queue.qp.post_send(request)
            key = int(request.rkey)
        finally:
            request.close()
        deadline_s = time.monotonic() + BIND_S
        while True:
            count, ended = self._cq.poll(1)
            if count:
                if int(ended[0].status) != int(enums.IBV_WC_SUCCESS):
                    raise TransferBusy(f"bind failed with status {int(ended[0].status)}")
                return key
            if time.monotonic() > deadline_s:
                raise TransferBusy("the adapter does not bind")
            time.sleep(_POLL_S)

    def close(self) -> None:
        pass


class _Registered:
    def __init__(self, region: LocalRegion, mr: Any, queues: int) -> None:
        self._memory = region.memory
        self._mr = mr
        self.keys = [int(mr.rkey)] * queues

    def close(self) -> None:
        self._mr.close()


class RegistrationExposer:
    def __init__(self, device: Device, queues: int) -> None:
        self._device = device
        self._queues = queues
        self.pd = device.verbs.pd.PD(device.context)

    def expose(self, region: LocalRegion, offset: int, length: int, rights: str) -> Exposure:
        access = _access(self._device, rights) | int(
            self._device.verbs.enums.IBV_ACCESS_LOCAL_WRITE
        )
        address = region.address + offset
        wish(address, length)
        try:
            mr = self._device.verbs.mr.MR(self.pd, length, access, address=address)
        except self._device.verbs.error as error:
            raise TransferBusy(f"the adapter takes no more memory: {error}") from error
        return _Registered(region, mr, self._queues)

    def close(self) -> None:
        self.pd.close()
