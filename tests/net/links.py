"""Two hosts of one machine: network namespaces with several wires between them.

Wires are veth pairs, slowed down to a known speed so that a transfer lasts long enough to be cut.
"""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
RATE = "600mbit"
RATE_BYTES_S = 75e6


class NoNamespaces(Exception):
    """They cannot be had here; the text says why."""


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=10)
    if done.returncode:
        raise NoNamespaces(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _require() -> None:
    """The tools and the right to use them; installs the tools where that is allowed."""
    if os.geteuid() != 0:
        raise NoNamespaces("only root may make network namespaces")
    if shutil.which("ip") and shutil.which("tc"):
        return
    if shutil.which("apt-get") is None:
        raise NoNamespaces("iproute2 is not installed, and there is no apt-get to install it with")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "iproute2"]):
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=120, env=environ
        )
        if done.returncode:
            raise NoNamespaces(f"iproute2 cannot be installed: {done.stderr.strip()[-200:]}")


@dataclass(frozen=True)
class Host:
    namespace: str
    side: int  # 1 or 2

    def address(self, wire: int, version: int) -> str:
        return f"10.77.{wire}.{self.side}" if version == 4 else f"fd77:{wire}::{self.side}"

    def addresses(self, wires: int, version: int) -> str:
        """As `listen_host` takes them."""
        return ",".join(self.address(wire, version) for wire in range(wires))

    def interface(self, wire: int) -> str:
        return f"wire{wire}"

    def ip(self, *words: str) -> str:
        return _run("ip", "-n", self.namespace, *words)

    def moved_bytes(self, wire: int) -> int:
        """Through the interface, both ways, since it was made: the kernel's own count."""
        (link,) = json.loads(self.ip("-j", "-s", "link", "show", self.interface(wire)))
        return int(link["stats64"]["rx"]["bytes"]) + int(link["stats64"]["tx"]["bytes"])

    def cut(self, wire: int) -> None:
        """Pulls the plug at this end: both ends lose the carrier."""
        self.ip("link", "set", self.interface(wire), "down")

    def swallow(self, wire: int) -> None:
        """Everything sent into the wire here is lost, and both ends believe that it works."""
        name = self.interface(wire)
        _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", name, "root", "blackhole")

    def heal(self, wire: int) -> None:
        self._slow_down(wire)
        self.ip("link", "set", self.interface(wire), "up")

    def set_up(self, wires: int) -> None:
        self.ip("link", "set", "lo", "up")
        self._sysctl("all", keep_addr_on_down=1, accept_dad=0)
        for wire in range(wires):
            name = self.interface(wire)
            self._sysctl(name, accept_dad=0)  # or nobody answers for it in the first second
            self.ip("addr", "add", f"{self.address(wire, 4)}/24", "dev", name)
            self.ip("addr", "add", f"{self.address(wire, 6)}/64", "dev", name, "nodad")
            self._slow_down(wire)
            self.ip("link", "set", name, "up")

    def _sysctl(self, interface: str, **values: int) -> None:
        with inside(self):
            for name, value in values.items():
                try:
                    Path(f"/proc/sys/net/ipv6/conf/{interface}/{name}").write_text(f"{value}\n")
                except OSError as error:
                    raise NoNamespaces(f"IPv6 cannot be set up: {error}") from error

    def _slow_down(self, wire: int) -> None:
        shape = ("tbf", "rate", RATE, "burst", "256k", "latency", "20ms")
        where = ("dev", self.interface(wire), "root")
        _run("tc", "-n", self.namespace, "qdisc", "replace", *where, *shape)


@contextlib.contextmanager
def two_hosts(wires: int = 2) -> Iterator[tuple[Host, Host]]:
    """Raises NoNamespaces."""
    _require()
    hosts = [Host(f"moonpool-{os.getpid()}-{side}", side) for side in (1, 2)]
    near, far = hosts
    try:
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
        for wire in range(wires):
            name = near.interface(wire)
            peer = ("peer", "name", name, "netns", far.namespace)
            near.ip("link", "add", "dev", name, "type", "veth", *peer)
        for host in hosts:
            host.set_up(wires)
        with inside(near):
            for wire in range(wires):
                for version in (4, 6):
                    _await_answer(far.address(wire, version))
        yield near, far
    finally:
        for host in hosts:
            subprocess.run(
                ["ip", "netns", "del", host.namespace], capture_output=True, check=False, timeout=10
            )


def _await_answer(address: str) -> None:
    """Kernels take up to a second to notice a new wire; then somebody refuses this port."""
    ends_s = time.monotonic() + 5.0
    while time.monotonic() < ends_s:
        try:
            socket.create_connection((address, 9), timeout=0.1).close()
        except ConnectionRefusedError:
            return
        except OSError:
            continue
    raise NoNamespaces(f"{address} does not answer through a new pair of interfaces")


@contextlib.contextmanager
def inside(host: Host) -> Iterator[None]:
    """This thread, and threads that it starts, are on that host; sockets stay where they were
    made."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(Path("/run/netns") / host.namespace, os.O_RDONLY)
    try:
        _enter(there)
        yield
    finally:
        _enter(before)
        os.close(before)
        os.close(there)


def _enter(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
