"""Every transport by its name."""

from collections.abc import Callable

from moonpool.transfer.transports.base import Surroundings, Transport
from moonpool.transfer.transports.memory import MemoryTransport
from moonpool.transfer.transports.rdma import RdmaTransport
from moonpool.transfer.transports.shm import ShmTransport
from moonpool.transfer.transports.tcp import TcpTransport

ONE_SIDED = {"rdma"}  # the owner's processor never sees the bytes, so it vouches for none
KINDS: dict[str, Callable[[Surroundings], Transport]] = {
    "memory": MemoryTransport,
    "shm": ShmTransport,
    "rdma": RdmaTransport,
    "tcp": TcpTransport,
}
