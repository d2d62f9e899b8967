"""The owner's side of rdma: a listening socket per address, and per peer a thread that answers its
asks. It sleeps while bytes move: that is between the adapters."""

import contextlib
import select
import socket
import threading
import time

from moonpool.transfer.errors import GrantRefused
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.tally import Tally
from moonpool.transfer.transports.fences import Fences
from moonpool.transfer.transports.rdma_control import Control, ControlLost
from moonpool.transfer.transports.rdma_device import Device
from moonpool.transfer.transports.rdma_session import Session
from moonpool.transfer.transports.rdma_wire import Ask, Connect, Connected, Granted, Withdrawn
from moonpool.transfer.wire import STATUS_OF, BadFrame, Status, pack_hello, unpack_hello

PEERS_MAX = 512
HANDSHAKE_S = 5.0


class _Peer:
    def __init__(self, control: Control) -> None:
        self.control = control
        self.session: Session | None = None
        self.name = b""  # of its link, while it may be served
        self.thread: threading.Thread | None = None


class RdmaOwner:
    """Also a notifier of the region table: what is withdrawn is unreachable at once. Threads end
    at `close`."""

    def __init__(
        self,
        name: str,
        table: RegionTable,
        tally: Tally,
        devices: list[Device],
        socks: list[socket.socket],
        fences: Fences,
    ) -> None:
        self._fences = fences
        self._name = name
        self._table = table
        self._tally = tally
        self._devices = {device.name: device for device in devices}
        self._socks = socks
        self._lock = threading.Lock()
        self._peers: set[_Peer] = set()
        self._closed = False
        accept = f"moonpool-rdma-accept-{name}"
        self._acceptors = [
            threading.Thread(target=self._accept, args=(sock,), name=accept, daemon=True)
            for sock in socks
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self._closed:
                    return
                self._tally.add("rdma.accept_failures")
                time.sleep(0.01)  # out of descriptors: let some come back
                continue
            self._admit(Control(sock))

    def _admit(self, control: Control) -> None:
        with self._lock:
            if len(self._peers) < PEERS_MAX and not self._closed:
                peer = _Peer(control)
                self._peers.add(peer)
                peer.thread = threading.Thread(
                    target=self._serve,
                    args=(peer,),
                    name=f"moonpool-rdma-serve-{self._name}",
                    daemon=True,
                )
                peer.thread.start()
                return
        self._tally.add("rdma.peers_refused")
        with contextlib.suppress(OSError):
            control.send_raw(pack_hello(self._table.epoch, Status.BUSY))
        control.close()

    # On a peer's thread.

    def _serve(self, peer: _Peer) -> None:
        try:
            if self._greet(peer) and self._connect(peer):
                self._answer(peer)
        except BadFrame:
            self._tally.add("rdma.bad_frames")
        except OSError:
            pass  # the peer went away
        finally:
            if peer.session is not None:
                peer.session.close()
            self._fences.leave(peer.name)
            with self._lock:
                self._peers.discard(peer)
            peer.control.close()  # last: it tells the peer that nothing can land any more

    def _greet(self, peer: _Peer) -> bool:
        try:
            hello = peer.control.hello(time.monotonic() + HANDSHAKE_S)
        except OSError as error:
            raise BadFrame("no hello") from error
        _, epoch = unpack_hello(hello)
        known = epoch == self._table.epoch
        status = Status.OK if known else Status.EPOCH
        if not known:
            self._table.refuse("epoch")
        peer.control.send_raw(pack_hello(self._table.epoch, status))
        return known

    def _connect(self, peer: _Peer) -> bool:
        """Queue pairs for whoever shows a valid grant; a word of refusal for others."""
        try:
            message = peer.control.receive(HANDSHAKE_S)
        except ControlLost:
            return False
        except TimeoutError as error:
            raise BadFrame("no ask") from error
        if not isinstance(message, Connect):
            raise BadFrame(f"a peer does not begin with {type(message).__name__}")
        ask = message.ask
        try:
            self._table.check(ask.region, ask.key, ask.offset, ask.length)
        except GrantRefused as refusal:
            peer.control.send(Granted(ask, STATUS_OF[refusal.reason]))
            return False
        if not self._obey(peer, message):
            return False
        device = self._devices.get(message.device)
        if device is None or not device.active:
            peer.control.send(Granted(ask, Status.NOT_SHAREABLE))
            return False
        try:
            session = Session(device, self._table, message.end)
        except (device.verbs.error, ValueError):
            self._tally.add("rdma.handshakes_failed")
            peer.control.send(Granted(ask, Status.NOT_SHAREABLE))
            return False
        with self._lock:
            peer.session = session
        peer.control.send(Connected(session.end, session.grant(ask)))
        return True

    def _obey(self, peer: _Peer, message: Connect) -> bool:
        """Ends what the peer gave up. False when its new link must not be served."""
        for name in message.fences:
            fenced = self._fences.fence(name, message.name)
            self._tally.add("rdma.fences" if fenced else "rdma.fences_failed")
            if not fenced:
                return False
        if message.name:
            if not self._fences.enter(message.name, peer.control.shut):
                return False
            peer.name = message.name
        return True

    def _answer(self, peer: _Peer) -> None:
        assert peer.session is not None
        poller = select.poll()
        poller.register(peer.control, select.POLLIN)
        while True:
            wait_s = peer.session.expire()
            poller.poll(None if wait_s is None else wait_s * 1000)
            for message in peer.control.arrived():
                if not isinstance(message, Ask):
                    raise BadFrame(f"a peer does not send {type(message).__name__}")
                peer.control.send(peer.session.grant(message))

    # Notifier.

    def announce(self, region: int, key: bytes | None) -> None:
        """Withdraws one grant, or with None all of a region, from every peer: a call or two to the
        adapter for each that had it."""
        for peer, session in self._sessions():
            if session.withdraw(region, key):
                with contextlib.suppress(OSError):  # then it learns it from the adapter
                    peer.control.send(Withdrawn(region, key or b""))
        if key is None:
            for device in self._devices.values():
                device.memory.forget(region)

    def unconfirmed(self, region: int, key: bytes | None) -> int:
        """Peers that may still get a key; it is unmade before they could use it."""
        return sum(session.unconfirmed(region, key) for _, session in self._sessions())

    def _sessions(self) -> list[tuple[_Peer, Session]]:
        with self._lock:
            return [(peer, peer.session) for peer in self._peers if peer.session is not None]

    def stats(self) -> dict[str, float]:
        return {
            "peers_served": len(self._peers),
            "grants_exposed": sum(session.exposed for _, session in self._sessions()),
        }

    def close(self) -> list[threading.Thread]:
        """Hangs up on every peer; the caller joins the threads."""
        with self._lock:
            self._closed = True
            peers = list(self._peers)
        for peer in peers:
            peer.control.shut()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        return [*self._acceptors, *(peer.thread for peer in peers if peer.thread is not None)]

    def close_socket(self) -> None:
        """After the threads have ended."""
        for sock in self._socks:
            sock.close()
