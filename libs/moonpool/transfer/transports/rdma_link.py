"""The client's connection to one owner: a handshake socket, a few queue pairs, and the keys the
owner has handed out. Used by one thread, but for `shut`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moonpool.messages.errors import MoonpoolError
from moonpool.transfer.base import Op
from moonpool.transfer.errors import PeerLost
from moonpool.transfer.job import Job
from moonpool.transfer.transports.fences import LeftBehind, new_name
from moonpool.transfer.transports.rdma_chain import CHAIN_MAX, Chain
from moonpool.transfer.transports.rdma_control import Control
from moonpool.transfer.transports.rdma_device import Device
from moonpool.transfer.transports.rdma_flight import Flight
from moonpool.transfer.transports.rdma_queue import Queue
from moonpool.transfer.transports.rdma_wire import Ask, Connect, Connected, End, Granted, Message
from moonpool.transfer.wire import BadFrame, Status, pack_hello, refused, unpack_hello

QUEUES = 2
GOODBYE_S = 0.2  # for the owner to end its queue pairs
REAP_MAX = 64


class LinkBroken(Exception):
    """The link is of no use any more. `culprit` is the flight whose request failed, when one did;
    all others end only because it takes them along. Unless `path_failed`, a new link will do."""

    def __init__(
        self, reason: str, culprit: Flight | None = None, *, path_failed: bool = True
    ) -> None:
        super().__init__(reason)
        self.culprit = culprit
        self.path_failed = path_failed


class LinkRefused(Exception):
    """No link came to be. `cause` is final for every job when it is no PeerLost."""

    def __init__(self, cause: MoonpoolError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class _Posted:
    flight: Flight
    requests: int


class Link:
    """`connect` first; after `close` the adapter touches no memory on its account."""

    def __init__(
        self,
        device: Device,
        chain: Chain,
        peer: str,
        epoch: str,
        control: Control,
        left: LeftBehind,
    ) -> None:
        """`left`: what was given up at this owner, on whichever way."""
        self._name = new_name()
        self._left = left
        self._told: set[bytes] = set()
        self._device = device
        self._chain = chain
        self._peer = peer
        self._epoch = epoch
        self.control = control
        self._enums = device.verbs.enums
        self._next_id = 1
        self._posted: dict[int, _Posted] = {}  # by wr_id
        self.flights: dict[Flight, None] = {}  # in order of arrival
        self._unposted: dict[Flight, None] = {}
        self.bytes_flying = 0
        self.close_failures = 0
        depth = device.depth
        self._channel, self.event_fd = device.channel()
        self._cq: Any = None
        self._queues: list[Queue] = []
        try:
            verbs = device.verbs
            self._cq = verbs.cq.CQ(device.context, QUEUES * depth, None, self._channel, 0)
            for _ in range(QUEUES):
                self._queues.append(Queue(device, device.pd, self._cq, depth))
        except BaseException:
            self.close()
            raise

    def connect(self, remote_device: str, ask: Ask, deadline_s: float) -> Granted:
        """Raises LinkRefused; a refusal of just this grant is in what it returns, and then the link
        is of no use. Raises pyverbs' error, OSError, BadFrame."""
        device = self._device
        self.control.send_raw(pack_hello(self._epoch))
        status, epoch = unpack_hello(self.control.hello(deadline_s))
        if status is Status.EPOCH or (status is Status.OK and epoch != self._epoch):
            raise LinkRefused(refused(self._peer, "epoch"))
        if status is not Status.OK:
            raise LinkRefused(PeerLost(f"{self._peer} takes no more rdma peers"))
        mine = End(
            gid=device.gid.text,
            lid=device.lid,
            mtu=device.mtu,
            reads_max=device.reads_max,
            queues=[queue.end for queue in self._queues],
        )
        fences = self._left.names()
        self.control.send(Connect(ask, remote_device, mine, self._name, fences))
        answer = self.control.receive(deadline_s - time.monotonic())
        if isinstance(answer, Granted) and answer.status != Status.OK:
            return answer
        if not isinstance(answer, Connected) or len(answer.end.queues) != len(self._queues):
            raise BadFrame(f"an answer of {type(answer).__name__}")
        if answer.granted.status == Status.OK and len(answer.granted.keys) != len(self._queues):
            raise BadFrame("too few keys")
        try:
            for queue, its in zip(self._queues, answer.end.queues, strict=True):
                queue.connect(answer.end, its, remote_access=False)
        except ValueError as error:
            raise BadFrame(str(error)) from error
        self._told.update(fences)
        self._left.settled(fences)
        return answer.granted

    @property
    def _is_told(self) -> bool:
        """Whether the owner has heard of all that was given up."""
        return not self._left or self._told.issuperset(self._left.names())

    def ask(self, ask: Ask) -> None:
        """Raises LinkBroken."""
        try:
            self.control.send(ask)
        except OSError as error:
            raise LinkBroken(f"the peer hung up: {error}") from error

    def heard(self) -> list[Message]:
        """Raises LinkBroken."""
        try:
            return self.control.arrived()
        except (OSError, BadFrame) as error:
            raise LinkBroken(f"the peer hung up: {error}") from error

    # Flights.

    def start(self, job: Job, granted: Granted) -> None:
        """Takes a claimed job. Raises LinkBroken, and then it flies too; TransferBusy."""
        memory = self._device.memory.take(job.local)
        number = min(range(len(self._queues)), key=lambda n: -self._queues[n].free)
        longest = self._device.message_bytes_max
        flight = Flight(
            job, self._queues[number], memory, granted.keys[number], granted.address, longest
        )
        self.flights[flight] = None
        self.bytes_flying += job.slice.payload
        if job.op is Op.WRITE and not self._is_told:
            raise LinkBroken("the owner must hear first what was given up", path_failed=False)
        self._post(flight)
        if flight.left:
            self._unposted[flight] = None

    def _post(self, flight: Flight) -> None:
        queue = flight.queue
        while flight.left and queue.free:
            count = min(CHAIN_MAX, flight.left, queue.free)
            number, self._next_id = self._next_id, self._next_id + 1
            self._posted[number] = _Posted(flight, count)
            queue.free -= count
            flight.unended += 1
            ranges = flight.take(count)
            try:
                self._chain.post(queue.qp, flight.job.op, number, flight.keys, *ranges)
            except self._device.verbs.error as error:
                raise LinkBroken(f"posting failed: {error}", flight) from error

    def reap(self, arrive: Callable[[Job], None]) -> bool:
        """Hands every job that has arrived to `arrive`, also when something else then breaks. False
        when there was nothing to see. Raises LinkBroken."""
        count, ended = self._cq.poll(REAP_MAX)
        for one in ended:
            posted = self._posted.pop(one.wr_id, None)
            if int(one.status) != int(self._enums.IBV_WC_SUCCESS):
                raise self._broken(int(one.status), posted.flight if posted else None)
            if posted is None:
                continue
            posted.flight.queue.free += posted.requests
            posted.flight.unended -= 1
            if posted.flight.done:
                self._leave(posted.flight)
                arrive(posted.flight.job)
        for flight in list(self._unposted):
            self._post(flight)
            if not flight.left:
                del self._unposted[flight]
        return bool(count)

    def _broken(self, status: int, culprit: Flight | None) -> LinkBroken:
        enums = self._enums
        denied = int(enums.IBV_WC_REM_ACCESS_ERR)
        known = {
            denied: "the peer's adapter refused access",
            int(enums.IBV_WC_RETRY_EXC_ERR): "the peer's adapter does not answer",
            int(enums.IBV_WC_WR_FLUSH_ERR): "the queue pair was broken",
        }
        text = known.get(status, f"the adapter reported status {status}")
        return LinkBroken(text, culprit, path_failed=status != denied)

    def _leave(self, flight: Flight) -> None:
        del self.flights[flight]
        self.bytes_flying -= flight.job.slice.payload
        self._device.memory.release(flight.memory)

    @property
    def room(self) -> bool:
        """Whether another job could be posted at once."""
        return not self._unposted and any(queue.free for queue in self._queues)

    def arm(self) -> None:
        """From now on `event_fd` is readable when there is something to reap; look once more."""
        self._cq.req_notify()

    def take_event(self) -> None:
        """`event_fd` is readable."""
        self._channel.get_cq_event(self._cq)
        self._cq.ack_events(1)

    def close(self) -> list[Flight]:
        """Stops the adapter, then gives back the flights that have not arrived. What WRITEs had on
        their way lands before this returns or never, if the owner is there to say so; else no newer
        WRITE leaves before it has. What the adapter does not close is counted, and goes with the
        process."""
        parts: list[Any] = [*self._queues, self._channel]
        if self._cq is not None:
            parts.insert(len(self._queues), self._cq)
        for part in parts:
            try:
                part.close()
            except self._device.verbs.error:
                self.close_failures += 1
        lost = list(self.flights)
        late = any(flight.job.op is Op.WRITE and flight.posted for flight in lost)
        if late and not self.control.goodbye(GOODBYE_S):
            self._left.add(self._name)  # before anybody hears that they failed
        self.control.close()
        for flight in lost:
            self._leave(flight)
        return lost
