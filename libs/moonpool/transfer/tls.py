"""TLS for the tcp transport: both sides show a certificate of the mesh's own authority.

Whoever has one belongs to the mesh; names in certificates are not looked at, because processes move
and grants already say whose memory may be reached. Bytes are encrypted; checksums come with it.
"""

import ctypes
import socket
import ssl
from dataclasses import dataclass

import numpy as np

from moonpool.transfer.errors import BadTransfer, PeerLost, PeerUntrusted
from moonpool.transfer.vectored import StreamBroken, Vector

WRITE_BYTES_MAX = 1 << 20  # per call: a socket's time limit is for a whole call
SMALL_BYTES = 16 << 10  # ranges below it are gathered, so that they share a record
GATHER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    certificate: str  # ours, with what leads from it to the authority
    key: str  # ours
    authority: str  # whose certificates we trust


class Tls:
    """Contexts for both sides of a stream. Raises BadTransfer on files that are no good."""

    def __init__(self, files: TlsFiles) -> None:
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self._server.num_tickets = 0

    def wrap(self, sock: socket.socket, *, server: bool) -> ssl.SSLSocket:
        """The same connection; nothing is said on it yet. `sock` is of no use any more."""
        context = self._server if server else self._client
        return context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)


class _Closing(ssl.SSLSocket):
    """Closes when dropped: wrapping can fail after it took the descriptor over (the peer left at
    that moment), and nobody else then has a hold of it."""

    def __del__(self) -> None:
        self.close()


def _context(protocol: ssl._SSLMethod, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.sslsocket_class = _Closing
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    what = "authority"
    try:
        context.load_verify_locations(files.authority)
        what = "certificate and key"
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadTransfer(f"tls: {what} cannot be used: {error}") from error
    return context


def handshake_error(where: str, error: OSError) -> PeerLost:
    """What a stream that did not come to be means for its transfers."""
    gone = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, ssl.SSLError) and not gone:
        return PeerUntrusted(f"{where}: tls: {error.reason or error}")
    return PeerLost(f"{where}: {error}")


class TlsVector(Vector):
    """A Vector whose bytes go through a tls socket, in place of a plain one's descriptor."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__()
        self._sock = sock
        self._gathered = np.zeros(GATHER_BYTES, np.uint8).data

    def send(self, fd: int) -> None:
        """Raises StreamBroken."""
        try:
            self._send()
        except OSError as error:
            raise StreamBroken(error.errno, str(error)) from error

    def _send(self) -> None:
        waiting = 0
        for view in self._views():
            if len(view) < SMALL_BYTES:
                if waiting + len(view) > GATHER_BYTES:
                    self._sock.sendall(self._gathered[:waiting])
                    waiting = 0
                self._gathered[waiting : waiting + len(view)] = view
                waiting += len(view)
                continue
            if waiting:
                self._sock.sendall(self._gathered[:waiting])
                waiting = 0
            for at in range(0, len(view), WRITE_BYTES_MAX):
                self._sock.sendall(view[at : at + WRITE_BYTES_MAX])
        if waiting:
            self._sock.sendall(self._gathered[:waiting])

    def receive(self, fd: int) -> None:
        """Raises StreamBroken."""
        try:
            for view in self._views():
                got = 0
                while got < len(view):
                    part = self._sock.recv_into(view[got:])
                    if not part:
                        raise ConnectionResetError("closed by the peer")
                    got += part
        except OSError as error:
            raise StreamBroken(error.errno, str(error)) from error

    def _views(self) -> list[memoryview]:
        rows = self._table[: self._count].tolist()
        return [
            memoryview((ctypes.c_char * length).from_address(address)).cast("B")
            for address, length in rows
        ]
