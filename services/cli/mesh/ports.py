"""TCP ports on this machine: which are free, and who holds one that is not."""

import contextlib
import random
import socket

import psutil

from services.cli.mesh.errors import MeshRefused

# Below the range that the kernel hands out to outgoing connections, so that nobody takes one
# between our look and the server's bind.
FREE_RANGE = range(20_000, 32_000)
TRIES_MAX = 1_000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on. Raises MeshRefused when there are none."""
    found: set[int] = set()
    for _ in range(TRIES_MAX):
        port = random.choice(FREE_RANGE)
        if port not in found and is_free(port):
            found.add(port)
        if len(found) == count:
            return list(found)
    raise MeshRefused(f"no {count} free ports between {FREE_RANGE.start} and {FREE_RANGE.stop}")


def prefer(port: int) -> int:
    """`port` when it is free, else any free one."""
    return port if is_free(port) else free_ports(1)[0]


def holder(port: int) -> str:
    """ "name (pid N)" of the process that listens on `port`, or "another process"."""
    with contextlib.suppress(psutil.Error, PermissionError):
        for each in psutil.net_connections(kind="tcp"):
            listens = each.status == psutil.CONN_LISTEN and each.laddr.port == port
            if listens and each.pid:
                return f"{psutil.Process(each.pid).name()} (pid {each.pid})"
    return "another process"
