"""The owner's side of shm: hands descriptors of our memory to peers that hold a valid grant, and
tells them when it is withdrawn. Lives on the event loop; never blocks."""

import asyncio
import contextlib
import os
import socket
from dataclasses import replace
from pathlib import Path

from moonpool.transfer.errors import GrantRefused
from moonpool.transfer.memory import readonly_fd
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.tally import Tally
from moonpool.transfer.transports import unix_path
from moonpool.transfer.transports.shm_wire import (
    ALL_KEYS,
    MESSAGE_BYTES_MAX,
    Kind,
    Message,
    unpack,
)
from moonpool.transfer.wire import STATUS_OF, BadFrame, Status, pack_hello, unpack_hello

PEERS_MAX = 512
BACKLOG = 128
ATTACHED_MAX = 4096  # per peer, before expired ones are swept out


class _Peer:
    """One connected peer."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.greeted = False
        self.attached: set[tuple[int, bytes]] = set()  # (region, key)
        self.unconfirmed: set[tuple[int, bytes]] = set()


class ShmOwner:
    """Listens on one Unix socket. It is also the region table's Notifier."""

    def __init__(
        self, table: RegionTable, path: Path, tally: Tally, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._table = table
        self._path = path
        self._tally = tally
        self._loop = loop
        self._sock: socket.socket | None = None
        self._inode = 0
        self._peers: dict[int, _Peer] = {}  # by file descriptor

    def listen(self) -> None:
        """Raises BadTransfer."""
        self._sock = unix_path.listen(self._path, BACKLOG)
        self._inode = self._path.stat().st_ino
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._sock is not None
        try:
            sock, _ = self._sock.accept()
        except OSError:  # gone again, or no descriptor left: the next one may work
            self._tally.add("shm.accept_failures")
            return
        sock.setblocking(False)
        if len(self._peers) >= PEERS_MAX:
            self._tally.add("shm.peers_refused")
            with contextlib.suppress(OSError):
                sock.send(pack_hello(self._table.epoch, Status.BUSY))
            sock.close()
            return
        peer = _Peer(sock)
        self._peers[sock.fileno()] = peer
        self._loop.add_reader(sock.fileno(), self._read, peer)

    def _read(self, peer: _Peer) -> None:
        for _ in range(64):  # then others have their turn
            try:
                data = peer.sock.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop(peer)
                return
            try:
                self._handle(peer, data)
            except BadFrame:
                self._tally.add("shm.bad_frames")
                self._drop(peer)
                return

    def _handle(self, peer: _Peer, data: bytes) -> None:
        if not peer.greeted:
            _, epoch = unpack_hello(data)
            peer.greeted = epoch == self._table.epoch
            status = Status.OK if peer.greeted else Status.EPOCH
            if not peer.greeted:
                self._table.refuse("epoch")
            self._send(peer, pack_hello(self._table.epoch, status))
            return
        message = unpack(data)
        if message.kind is Kind.ATTACH:
            self._attach(peer, message)
        elif message.kind is Kind.CONFIRMED:
            peer.unconfirmed.discard((message.region, message.key))
        else:
            raise BadFrame(f"a peer does not send {message.kind.name}")

    def _attach(self, peer: _Peer, ask: Message) -> None:
        try:
            region, rights = self._table.check(ask.region, ask.key, ask.offset, ask.length)
        except GrantRefused as refusal:
            self._answer(peer, ask, STATUS_OF[refusal.reason])
            return
        if region.memory.fd < 0:
            self._answer(peer, ask, Status.NOT_SHAREABLE)
            return
        reply = replace(ask, kind=Kind.ATTACHED, size=region.length, rights=rights)
        writable = "w" in rights
        fd = region.memory.fd if writable else readonly_fd(region.memory.fd)
        try:
            if len(peer.attached) >= ATTACHED_MAX:
                peer.attached = {a for a in peer.attached if self._table.knows(*a)}
            peer.attached.add((ask.region, ask.key))
            self._send(peer, reply.pack(), fd)
        finally:
            if not writable:
                os.close(fd)

    def _answer(self, peer: _Peer, ask: Message, status: Status) -> None:
        self._send(peer, replace(ask, kind=Kind.ATTACHED, status=status, rights="").pack())

    def _send(self, peer: _Peer, data: bytes, fd: int = -1) -> None:
        """A peer that does not read is hung up on: it will see the end of file before it could
        believe another copy."""
        try:
            if fd >= 0:
                socket.send_fds(peer.sock, [data], [fd])
            else:
                peer.sock.send(data)
        except OSError:
            self._tally.add("shm.hang_ups")
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_WR)

    def _drop(self, peer: _Peer) -> None:
        self._peers.pop(peer.sock.fileno(), None)
        self._loop.remove_reader(peer.sock.fileno())
        peer.sock.close()
        peer.attached.clear()
        peer.unconfirmed.clear()

    # Notifier.

    def announce(self, region: int, key: bytes | None) -> None:
        """Withdraws one grant, or with None all of a region. Never blocks."""
        for peer in list(self._peers.values()):
            mine = {a for a in peer.attached if a[0] == region and (key is None or key == a[1])}
            if not mine:
                continue
            peer.attached -= mine
            peer.unconfirmed.add((region, key or ALL_KEYS))
            self._send(peer, Message(Kind.WITHDRAWN, region, key or ALL_KEYS).pack())

    def unconfirmed(self, region: int, key: bytes | None) -> int:
        """Peers that may still copy."""
        return sum(
            1
            for peer in self._peers.values()
            if any(
                r == region and (key is None or k in (key, ALL_KEYS)) for r, k in peer.unconfirmed
            )
        )

    def stats(self) -> dict[str, float]:
        return {"peers_served": len(self._peers)}

    def close(self) -> None:
        """Peers see the end of file. The socket's file goes, unless a successor replaced it."""
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None
        for peer in list(self._peers.values()):
            self._drop(peer)
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
