"""The client's side of shm: one link per peer process, its mappings, and the copies through them.

The link's socket is the peer's pulse. It is looked at before and after every slice: a withdrawn
grant or a dead peer (end of file) makes the slice fail, so that stale bytes are never a success.
Asking and answering happens on the event loop; copying on any thread.
"""

import asyncio
import contextlib
import os
import select
import socket
import threading
from pathlib import Path as FilePath

from moonpool.messages.errors import MoonpoolError
from moonpool.messages.segments import RegionGrant
from moonpool.transfer.errors import BadTransfer, PeerLost
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.memory import Memory, map_peer
from moonpool.transfer.remote import OpenedGrant
from moonpool.transfer.transports import unix_path
from moonpool.transfer.transports.base import Reporter
from moonpool.transfer.transports.endpoint_pool import EndpointPool
from moonpool.transfer.transports.pool import CopyPool
from moonpool.transfer.transports.shm_attachment import Attachment, Connection
from moonpool.transfer.transports.shm_copying import Copying
from moonpool.transfer.transports.shm_hold import ShmHold
from moonpool.transfer.transports.shm_upkeep import Upkeep
from moonpool.transfer.transports.shm_wire import (
    ALL_KEYS,
    MESSAGE_BYTES_MAX,
    Kind,
    Message,
    unpack,
)
from moonpool.transfer.wire import (
    BadFrame,
    Status,
    error_of,
    pack_hello,
    refused,
    unpack_hello,
)

_Range = tuple[bytes, int, int]  # key, offset, length: what was asked for is what was checked
ATTACHED_MAX = 4096  # attachments of a link before expired ones are swept out


class ShmLink:
    """A path. Reconnects by itself when the peer is there again."""

    name = "shm"
    ways = 1

    def __init__(
        self,
        peer: str,
        epoch: str,
        address: FilePath,
        pool: CopyPool,
        reporter: Reporter,
        loop: asyncio.AbstractEventLoop,
        endpoints: EndpointPool,
    ) -> None:
        self.peer = peer
        self._upkeep = Upkeep(self, peer, endpoints, loop)
        self.epoch = epoch
        self._address = address
        self._pool = pool
        self._reporter = reporter
        self._loop = loop
        self._lock = threading.Lock()  # over the socket, attachments and their counts
        self._connection: Connection | None = None
        self._failed: MoonpoolError | None = None  # why the connection of now is no good
        self._attached: dict[_Range, Attachment] = {}
        self._mapped: dict[tuple[int, bool], Memory] = {}  # by region and writable
        self._waiting: dict[_Range, list[Job]] = {}  # for the answer to an attach
        self._arrived: list[tuple[bytes, list[int]]] = []  # read by a thread, for the loop
        self._to_confirm: list[Message] = []  # withdrawn while copies ran

    # On the loop.

    def start(self, job: Job) -> None:
        """Takes the job. Never blocks longer than one small copy."""
        self._upkeep.used()
        grant = job.remote.grant
        range_ = (grant.key, grant.offset, grant.length)
        attachment = self._attached.get(range_)
        if attachment is not None and attachment.fresh:
            self._run(job, attachment)
            return
        if attachment is not None and attachment.withdrawn:
            self._reporter.report(job, refused(grant.segment, "unknown"), self.name)
            return
        asked = self._waiting.setdefault(range_, [])
        asked.append(job)
        if len(asked) == 1:
            self._ask(grant)
        elif len(asked) % 256 == 0:
            asked[:] = [j for j in asked if not j.claimed]

    def _ask(self, grant: RegionGrant) -> None:
        try:
            sock = self._connected()
            ask = Message(Kind.ATTACH, grant.region, grant.key, grant.offset, grant.length)
            sock.send(ask.pack())
        except OSError as error:
            self.lose(PeerLost(f"{self.peer} at {self._address}: {error.strerror}"))

    def _connected(self) -> socket.socket:
        if self._connection is not None:
            return self._connection.sock
        sock = unix_path.connect(self._address, pack_hello(self.epoch))
        with self._lock:
            news = select.poll()
            news.register(sock, select.POLLIN)
            self._connection = Connection(sock, news)
            self._failed = None
        self._loop.add_reader(sock.fileno(), self._on_readable)
        self._upkeep.connected()
        return sock

    def _on_readable(self) -> None:
        with self._lock:
            self._receive()
        self._take_arrived()

    def _take_arrived(self) -> None:
        """Handles what the owner said, from whichever thread it was read."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
            failed = self._failed
        for data, fds in arrived:
            try:
                self._answered(unpack(data), fds)
            finally:
                for fd in fds:
                    os.close(fd)
        if failed is not None:
            self.lose(failed)

    def _answered(self, answer: Message, fds: list[int]) -> None:
        """The owner's word on one attach: its jobs run, are refused, or go another way."""
        range_ = (answer.key, answer.offset, answer.length)
        jobs = self._waiting.pop(range_, [])
        live = [job for job in jobs if not job.claimed]
        if not live:
            if answer.status is Status.OK and jobs:
                self._attach(answer, fds, jobs[0].remote.grant)
            return
        if answer.status is not Status.OK:
            self._attached.pop(range_, None)
            self._refuse(live, answer.status)
            return
        attachment = self._attach(answer, fds, live[0].remote.grant)
        for job in live:
            if attachment is None:
                self._report_waiting(job, PathFailed(PeerLost(f"cannot map memory of {self.peer}")))
            else:
                self._run(job, attachment)

    def _refuse(self, jobs: list[Job], status: Status) -> None:
        error = error_of(status, self.peer)
        if status is Status.NOT_SHAREABLE or not isinstance(error, MoonpoolError):
            error = PathFailed(BadTransfer(f"memory of {self.peer} lies in no shareable file"))
        for job in jobs:
            self._report_waiting(job, error)

    def _report_waiting(self, job: Job, error: Exception) -> None:
        if job.claim():
            self._reporter.report(job, error, self.name)

    def _attach(self, answer: Message, fds: list[int], grant: RegionGrant) -> Attachment | None:
        writable = "w" in answer.rights
        if len(fds) != 1 or answer.offset + answer.length > answer.size:
            return None
        memory = self._mapped.get((answer.region, writable))
        if memory is None:
            try:
                memory = map_peer(fds[0], answer.size, writable=writable)
            except OSError:
                return None
            self._mapped[(answer.region, writable)] = memory
        if len(self._attached) >= ATTACHED_MAX:
            self._sweep()
        if self._connection is None:
            return None
        attachment = Attachment(
            self._connection,
            memory,
            answer.region,
            answer.key,
            answer.rights,
            grant.expires_unix_s,
        )
        with self._lock:
            self._attached[(answer.key, answer.offset, answer.length)] = attachment
        return attachment

    def _sweep(self) -> None:
        with self._lock:
            gone = [k for k, a in self._attached.items() if not a.copies and not a.fresh]
            for key in gone:
                del self._attached[key]

    def _run(self, job: Job, attachment: Attachment) -> None:
        copying = Copying(self, self._reporter, job, attachment)
        if job.inline:
            copying.run_now()
        else:
            self._pool.put(copying, job.priority)

    def lose(self, reason: MoonpoolError) -> None:
        """The connection is no good: everything that waits on it tries another path."""
        with self._lock:
            lost, self._connection = self._connection, None
            self._failed = None
            self._attached.clear()
            self._mapped.clear()
            self._to_confirm.clear()
            if lost is not None:
                self._loop.remove_reader(lost.sock.fileno())
                lost.lost = True
                lost.close_if_unused()
        if lost is not None:
            self._upkeep.lost()
        waiting, self._waiting = self._waiting, {}
        final = reason if not isinstance(reason, PeerLost) else None
        for job in [job for jobs in waiting.values() for job in jobs]:
            self._report_waiting(job, final or PathFailed(reason))

    def close(self) -> None:
        """No job is left; what the owner still says is dropped."""
        with self._lock:
            unread, self._arrived = self._arrived, []
        for fd in [fd for _, fds in unread for fd in fds]:
            os.close(fd)
        self.lose(PeerLost("the transfer engine is closed"))

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def greeted(self) -> bool:
        return self._connection is not None and self._connection.greeted

    @property
    def idle(self) -> bool:
        now = self._connection
        return not self._waiting and not (now is not None and now.copies)

    @property
    def mapped_bytes(self) -> int:
        return sum(memory.length for memory in self._mapped.values())

    # On any thread.

    def enter(self, attachment: Attachment) -> Exception | None:
        """We are in the owner's memory until `leave`; why we should not be."""
        with self._lock:
            attachment.copies += 1
            attachment.connection.copies += 1
            return self._problem(attachment)

    def leave(self, attachment: Attachment) -> None:
        """Out of it again: an owner that waits is told."""
        with self._lock:
            self._leave(attachment)

    def finish(self, attachment: Attachment) -> Exception | None:
        """The same; why what was copied does not count. One lock: every copy pays for it."""
        with self._lock:
            problem = self._problem(attachment)
            self._leave(attachment)
            return problem

    def _leave(self, attachment: Attachment) -> None:
        """With the lock held."""
        connection = attachment.connection
        attachment.copies -= 1
        connection.copies -= 1
        if connection.lost:
            connection.close_if_unused()
        if attachment.withdrawn and not attachment.copies:
            self._confirm()

    def hold(self, remote: OpenedGrant) -> ShmHold:
        """See `Mapper`."""
        grant = remote.grant
        attachment = self._attached.get((grant.key, grant.offset, grant.length))
        if attachment is None:
            raise PeerLost(f"{self.peer} went away")
        if not attachment.fresh:
            raise refused(self.peer, "unknown" if attachment.withdrawn else "expired")
        problem = self.enter(attachment)
        if problem is None:
            return ShmHold(self, attachment)
        self.leave(attachment)
        raise problem.cause if isinstance(problem, PathFailed) else problem

    def problem(self, attachment: Attachment) -> Exception | None:
        """Why what was read or written through it until now does not count."""
        with self._lock:
            return self._problem(attachment)

    def _problem(self, attachment: Attachment) -> Exception | None:
        """With the lock held: what the owner has said until this very moment."""
        now = self._connection
        if now is not None and now.news.poll(0) and self._receive():
            self._loop.call_soon_threadsafe(self._take_arrived)
        if attachment.connection.lost or self._failed is not None:
            return PathFailed(PeerLost(f"{self.peer} went away"))
        if attachment.withdrawn:
            return refused(self.peer, "unknown")
        return None

    def _receive(self) -> bool:
        """With the lock held: reads what there is. True when the loop has something to do."""
        news = False
        while (now := self._connection) is not None and self._failed is None:
            try:
                data, fds, flags, _ = socket.recv_fds(
                    now.sock, MESSAGE_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return news
            except OSError as error:
                data, fds, flags = b"", [], 0
                self._failed = PeerLost(f"{self.peer} went away: {error.strerror}")
            news = True
            if not data:
                self._failed = self._failed or PeerLost(f"{self.peer} went away")
            elif not self._sort(now, data, fds, flags):
                for fd in fds:
                    os.close(fd)
        return news

    def _sort(self, now: Connection, data: bytes, fds: list[int], flags: int) -> bool:
        """With the lock held: handles one message; True when it kept the descriptors."""
        try:
            if flags & socket.MSG_TRUNC:
                raise BadFrame("message too long")
            if not now.greeted:
                self._greet(now, data)
                return False
            message = unpack(data)
        except BadFrame as error:
            self._failed = PeerLost(
                f"{self.peer} at {self._address} is no transfer engine: {error}"
            )
            return False
        if message.kind is Kind.WITHDRAWN:
            self._withdraw(message)
            return False
        self._arrived.append((data, fds))
        return True

    def _greet(self, now: Connection, data: bytes) -> None:
        status, epoch = unpack_hello(data)
        now.greeted = True
        if status is Status.EPOCH or (status is Status.OK and epoch != self.epoch):
            self._failed = refused(self.peer, "epoch")
        elif status is not Status.OK:
            self._failed = PeerLost(f"{self.peer} takes no more shm peers")

    def _withdraw(self, message: Message) -> None:
        every = message.key == ALL_KEYS
        for attachment in list(self._attached.values()):
            if attachment.region == message.region and (every or attachment.key == message.key):
                attachment.withdrawn = True
        if every:
            for writable in (False, True):
                self._mapped.pop((message.region, writable), None)
        self._to_confirm.append(message)
        self._confirm()

    def _confirm(self) -> None:
        """With the lock held: answers every withdrawal that no copy stands in the way of."""
        busy = [a for a in self._attached.values() if a.copies and a.withdrawn]
        still = []
        for message in self._to_confirm:
            if any(a.region == message.region and message.key in (ALL_KEYS, a.key) for a in busy):
                still.append(message)
                continue
            for key in [k for k, a in self._attached.items() if a.withdrawn and not a.copies]:
                del self._attached[key]
            reply = Message(Kind.CONFIRMED, message.region, message.key)
            if self._connection is not None:
                with contextlib.suppress(OSError):  # then the end of file says the same
                    self._connection.sock.send(reply.pack())
        self._to_confirm = still
