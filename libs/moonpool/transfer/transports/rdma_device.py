"""An opened adapter port: what all connections through it share."""

import os
import re
import threading
from typing import Any

from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.transports.base import TransportUnavailable
from moonpool.transfer.transports.rdma_choice import Choice, Gid, best_gid
from moonpool.transfer.transports.rdma_memory import MemoryCache
from moonpool.transfer.transports.rdma_verbs import Verbs

QUEUE_DEPTH_MAX = 256
READS_MAX = 16  # outstanding at the peer, per queue pair
GIDS_MAX = 256
SOFT_VENDOR = 0xFFFFFF  # soft-RoCE: its memory windows do not keep their bounds
MESSAGE_BYTES_MAX = 1 << 30
_EVENT_FD = "anon_inode:[infinibandevent]"
_opening = threading.Lock()  # over everything that makes event descriptors


class Device:
    """Raises TransportUnavailable when the port is not active, BadTransfer when the choice names
    what is not there."""

    def __init__(self, verbs: Verbs, choice: Choice) -> None:
        self.verbs = verbs
        self.name = choice.device
        with _opening:
            self.context = verbs.device.Context(name=choice.device)
        try:
            attributes = self.context.query_device()
            self.port = choice.port or self._first_active(attributes.phys_port_cnt)
            port = self.context.query_port(self.port)
            self.gid = self._gid(choice, port.gid_tbl_len)
            self.lid: int = port.lid
            self.mtu: int = int(port.active_mtu)
            self.message_bytes_max = min(int(port.max_msg_sz), MESSAGE_BYTES_MAX)
            self.reads_max = max(1, min(attributes.max_qp_rd_atom, READS_MAX))
            self.depth = min(int(attributes.max_qp_wr), QUEUE_DEPTH_MAX)
            second = verbs.enums.IBV_DEVICE_MEM_WINDOW_TYPE_2B
            bound_to_queue = bool(attributes.device_cap_flags & second)
            self.windows = bound_to_queue and attributes.vendor_id != SOFT_VENDOR
            self.pd = verbs.pd.PD(self.context)
            self.memory = MemoryCache(verbs, self.pd)
        except BaseException:
            self.context.close()
            raise

    def _first_active(self, ports: int) -> int:
        for number in range(1, ports + 1):
            if self._is_active(number):
                return number
        raise TransportUnavailable(f"{self.name}: no port is active")

    def _gid(self, choice: Choice, table_length: int) -> Gid:
        entries = self.context.query_gid_table(min(table_length, GIDS_MAX))
        gids = [
            Gid(entry.gid_index, int(entry.gid_type), self._text(entry.gid_index))
            for entry in entries
            if entry.port_num == self.port
        ]
        if choice.gid_index >= 0:
            gids = [gid for gid in gids if gid.index == choice.gid_index]
            if not gids:
                raise BadTransfer(f"{self.name} port {self.port} has no GID {choice.gid_index}")
        gid = best_gid(gids)
        if gid is None:
            raise TransportUnavailable(f"{self.name} port {self.port} has no address (GID)")
        return gid

    def _text(self, index: int) -> str:
        text: str = self.context.query_gid(self.port, index).gid
        return text

    def _is_active(self, port: int) -> bool:
        return int(self.context.query_port(port).state) == int(self.verbs.enums.IBV_PORT_ACTIVE)

    @property
    def active(self) -> bool:
        """Whether packets can leave: false while its link is down."""
        try:
            return self._is_active(self.port)
        except self.verbs.error:
            return False

    def channel(self) -> tuple[Any, int]:
        """A new completion channel and its file descriptor, which pyverbs does not tell: -1 when it
        cannot be known for sure."""
        with _opening:
            before = _event_fds()
            channel = self.verbs.cq.CompChannel(self.context)
            new = _event_fds() - before
        return channel, new.pop() if len(new) == 1 else -1

    def close(self) -> None:
        """After everything that uses it."""
        self.memory.close()
        self.pd.close()
        self.context.close()


def _event_fds() -> set[int]:
    out = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == _EVENT_FD:
                out.add(int(name))
        except FileNotFoundError:
            continue  # closed since: none of ours
    return out


def open_devices(verbs: Verbs, choices: list[Choice]) -> list[Device]:
    """The adapters chosen, or all with an active port when none is. Raises TransportUnavailable,
    BadTransfer."""
    names = _names(verbs)
    for choice in choices:
        if choice.device not in names:
            known = ", ".join(names) or "none"
            raise TransportUnavailable(f"no adapter {choice.device}; there are: {known}")
    if not names:
        raise TransportUnavailable("this host has no RDMA adapter")
    opened: list[Device] = []
    reasons = []
    for choice in choices or [Choice(name) for name in names]:
        try:
            opened.append(Device(verbs, choice))
        except TransportUnavailable as error:
            reasons.append(str(error))
        except verbs.error as error:
            reasons.append(f"{choice.device}: {error}")
    if not opened:
        raise TransportUnavailable("; ".join(reasons))
    return opened


def _names(verbs: Verbs) -> list[str]:
    try:
        found = verbs.device.get_device_list()
    except verbs.error:
        return []  # what it says on a host without any
    names = [d.name.decode() if isinstance(d.name, bytes) else str(d.name) for d in found]
    return sorted(
        names, key=lambda n: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", n)]
    )
