"""Lines of one engine: those that peers open to us, and those that we open to peers.

A line begins as any tcp stream does, with the greeting that proves epochs; then comes one frame
that asks for a line and shows a capability. The owner's user, who gave that out, looks at it.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from moonpool.messages.segments import RegionGrant
from moonpool.transfer import vectored
from moonpool.transfer.errors import GrantRefused, PeerLost
from moonpool.transfer.lines import Line
from moonpool.transfer.lookout import Lookout
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.tally import Tally
from moonpool.transfer.tls import TlsFiles
from moonpool.transfer.vectored import StreamBroken
from moonpool.transfer.wakeful import Wakeful
from moonpool.transfer.wire import (
    HELLO_BYTES,
    BadFrame,
    Frame,
    Status,
    WireOp,
    check_of,
    error_of,
    pack_hello,
    refused,
    unpack_hello,
)

OPEN_S = 2.0  # for a connection and its greeting

Take = Callable[[Line, bytes], None]  # on the loop: a line, and the capability that it shows


class LineDesk:
    """Belongs to the loop, but for `offer`."""

    def __init__(
        self,
        table: RegionTable,
        loop: asyncio.AbstractEventLoop,
        transports: Sequence[str],
        tls: TlsFiles | None,
        tally: Tally,
        look_out: bool = True,
    ) -> None:
        """There are no lines unless tcp is spoken, and without tls. `look_out`: for answers, before
        sleeping."""
        self._loop = loop
        self._tally = tally
        self._lookout = Lookout(look_out)
        self._wakeful = Wakeful(loop, self._lookout)
        self._is_plain = "tcp" in transports and tls is None
        self._take: Take | None = None
        self._open: set[Line] = set()  # by whomever
        self._served: set[Line] = set()  # those that peers opened
        self._closed = False
        table.offer_line = self.offer

    def serve(self, take: Take) -> bool:
        """Lines that peers open are given to `take`, which closes what it does not want. False
        when none can come."""
        self._take = take
        return self._is_plain

    def offer(self, sock: socket.socket, key: bytes) -> bool:
        """From any thread: a peer wants a line on `sock`. True: it is ours from now on."""
        if self._take is None or self._closed or not self._is_plain:
            return False
        try:
            self._loop.call_soon_threadsafe(self._begin, sock, key)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _begin(self, sock: socket.socket, key: bytes) -> None:
        if self._take is None or self._closed:
            sock.close()
            return
        with contextlib.suppress(OSError):  # gone already: whoever reads will see
            vectored.tune_for_bursts(sock)
        line = Line(sock, self._loop, self._lookout, self._wakeful)
        self._keep(line)
        self._served = {each for each in self._served if not each.closed} | {line}
        self._take(line, key)

    async def open(self, grant: RegionGrant, key: bytes) -> Line:
        """A line to the owner of `grant`. Raises PeerLost, GrantRefused when it is not the life of
        it that gave that out."""
        segment, epoch = grant.segment, grant.epoch
        failed: Exception | None = None
        for endpoint in grant.endpoints:
            if endpoint.transport != "tcp" or not self._is_plain or self._closed:
                continue
            try:
                return await self._open_at(segment, epoch, endpoint.address, key)
            except (OSError, ValueError, BadFrame, TimeoutError, PeerLost) as error:
                failed = error  # ValueError: an address that is none
        raise PeerLost(f"no line to {segment}: {failed or 'it offers none that we can use'}")

    async def _open_at(self, segment: str, epoch: str, address: str, key: bytes) -> Line:
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(OPEN_S):
                await self._loop.sock_connect(sock, (host.strip("[]"), int(port)))
                vectored.tune(sock)
                await self._loop.sock_sendall(sock, pack_hello(epoch))
                data = b""
                while len(data) < HELLO_BYTES:
                    part = await self._loop.sock_recv(sock, HELLO_BYTES - len(data))
                    if not part:
                        raise StreamBroken(0, "closed without a word")
                    data += part
                status, found = unpack_hello(data)
                if status is Status.EPOCH or (status is Status.OK and found != epoch):
                    raise refused(segment, "epoch")
                if status is not Status.OK:
                    raise _as_error(status, segment)
                await self._loop.sock_sendall(sock, asking(key))
            sock.setblocking(True)
            if self._closed:
                raise StreamBroken(0, "the transfer engine is closed")
        except BaseException:
            sock.close()
            raise
        line = Line(sock, self._loop, self._lookout)
        line.watch()
        self._keep(line)
        return line

    def _keep(self, line: Line) -> None:
        self._open = {each for each in self._open if not each.closed} | {line}

    def moved(self, payload_bytes: int) -> None:
        """The owner's user sent or took so much on a line."""
        self._tally.add("tcp.served_bytes", payload_bytes)

    @property
    def count(self) -> int:
        return sum(not line.closed for line in self._open)

    @property
    def served(self) -> int:
        """How many that peers opened are open."""
        return sum(not line.closed for line in self._served)

    def close(self) -> None:
        """Ends every line. Idempotent."""
        self._closed = True
        for line in list(self._open):
            with contextlib.suppress(OSError):
                vectored.shut(line.sock)
            line.close()
        self._lookout.close()


def asking(key: bytes) -> bytes:
    """The frame that makes a stream a line."""
    return Frame(WireOp.LINE, 1, 0, 0, 1, key, check_of(key), 1).pack()


def _as_error(status: Status, segment: str) -> PeerLost | GrantRefused:
    error = error_of(status, segment)
    return error if isinstance(error, PeerLost | GrantRefused) else PeerLost(str(error))
