"""The bus within one process: the same promises without a server, for tests and simulations."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from moonpool.bus.base import Callback, Endpoint
from moonpool.bus.desk import Desk
from moonpool.bus.errors import BusClosed, NoResponder, PayloadTooLarge, RequestTimeout
from moonpool.bus.parts import PARTS_TOTAL_MAX_BYTES
from moonpool.bus.pump import Pump
from moonpool.messages.errors import ErrorInfo, error_from

PAYLOAD_MAX_BYTES = (1 << 20) - 1024
CLOSE_GRACE_S = 5.0
_KEPT_MAX = 65536  # durable messages kept per stream for a reader

Ticket = asyncio.Future[bytes]


def matches(pattern: str, subject: str) -> bool:
    """Whether `subject` falls under `pattern`: `*` is one token, a last `>` is one or more."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


@dataclass(slots=True)
class _Stream:
    subjects: tuple[str, ...]
    bytes_max: int
    kept: list[tuple[str, bytes]] = field(default_factory=list)
    kept_bytes: int = 0  # <= bytes_max, but for a single larger message


class MemoryBroker:
    """What several buses share: who listens to what."""

    def __init__(self, payload_max_bytes: int = PAYLOAD_MAX_BYTES) -> None:
        self.payload_max_bytes = payload_max_bytes
        self.pumps: dict[Pump, str] = {}
        self.desks: dict[Desk[Ticket], str] = {}
        self.streams: dict[str, _Stream] = {}
        self.buckets: dict[str, dict[str, bytes]] = {}
        self._turn = count()

    def deliver(self, subject: str, payload: bytes) -> int:
        """Offers to every matching subscription and keeps for streams; how many took it."""
        takers = 0
        for pump, pattern in self.pumps.items():
            if matches(pattern, subject):
                pump.offer(subject, payload)
                takers += 1
        for stream in self.streams.values():
            if any(matches(pattern, subject) for pattern in stream.subjects):
                takers += 1
                self._keep(stream, subject, payload)
        return takers

    def desks_for(self, subject: str) -> list[Desk[Ticket]]:
        """Who would get a request: everybody ungrouped, and one member of each queue group."""
        alone: list[Desk[Ticket]] = []
        groups: dict[str, list[Desk[Ticket]]] = {}
        for desk, pattern in self.desks.items():
            if not matches(pattern, subject):
                continue
            group = desk.endpoint.queue_group
            if group:
                groups.setdefault(group, []).append(desk)
            else:
                alone.append(desk)
        for members in groups.values():
            alone.append(members[next(self._turn) % len(members)])
        return alone

    def kept(self, stream: str) -> list[tuple[str, bytes]]:
        """What a stream holds, oldest first."""
        return list(self.streams[stream].kept)

    def _keep(self, stream: _Stream, subject: str, payload: bytes) -> None:
        stream.kept.append((subject, payload))
        stream.kept_bytes += len(payload)
        while len(stream.kept) > 1 and (
            stream.kept_bytes > stream.bytes_max or len(stream.kept) > _KEPT_MAX
        ):
            stream.kept_bytes -= len(stream.kept.pop(0)[1])


class MemorySubscription:
    def __init__(self, bus: "MemoryBus", pump: Pump) -> None:
        self._bus = bus
        self._pump = pump

    async def close(self) -> None:
        self._bus.forget_pump(self._pump)
        await self._pump.close()

    def stats(self) -> dict[str, int]:
        return self._pump.stats()


class MemoryBucket:
    """A `Bucket`, kept by the broker."""

    def __init__(self, bus: "MemoryBus", name: str) -> None:
        self._bus = bus
        self._before = f"$KV.{name}."
        self._values = bus.broker.buckets.setdefault(name, {})

    async def put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        await self._bus.publish(f"{self._before}{key}", value)

    async def delete(self, key: str) -> None:
        self._values.pop(key, None)
        await self._bus.publish(f"{self._before}{key}", b"")

    async def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    async def entries(self) -> dict[str, bytes]:
        return dict(self._values)

    async def watch(self, on_change: Callable[[str], None]) -> MemorySubscription:
        async def hear(subject: str, _: bytes) -> None:
            on_change(subject.removeprefix(self._before))

        return await self._bus.subscribe(f"{self._before}>", hear)


class MemoryService:
    def __init__(
        self,
        broker: MemoryBroker,
        name: str,
        id: str,
        version: str,
        endpoints: Sequence[Endpoint],
        metadata: Mapping[str, str],
    ) -> None:
        self._broker = broker
        self.name = name
        self.id = id
        self.version = version
        self.metadata = dict(metadata)
        self._desks = [Desk(endpoint, self._reply, _refuse) for endpoint in endpoints]
        broker.desks.update({desk: desk.endpoint.subject for desk in self._desks})

    async def close(self) -> None:
        """As on NATS: no new ones, those that wait are refused, those that run get a few seconds.
        Idempotent."""
        for desk in self._desks:
            self._broker.desks.pop(desk, None)
        await asyncio.gather(*(desk.close(CLOSE_GRACE_S) for desk in self._desks))

    def stats(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for desk in self._desks:
            for key, value in desk.stats().items():
                total[key] = total.get(key, 0) + value
        return total

    async def _reply(self, ticket: Ticket, answer: bytes) -> None:
        limit = self._broker.payload_max_bytes
        if len(answer) > limit:
            raise PayloadTooLarge("the requester", len(answer), limit)
        if not ticket.done():
            ticket.set_result(answer)


async def _refuse(ticket: Ticket, info: ErrorInfo) -> None:
    if not ticket.done():
        ticket.set_exception(error_from(info))


class MemoryBus:
    """One participant. Those that share a broker hear one another."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker if broker is not None else MemoryBroker()
        self._pumps: set[Pump] = set()
        self._services: list[MemoryService] = []
        self._closed = False
        self._requests = self._timeouts = self._published = self._dropped = 0

    @property
    def payload_max_bytes(self) -> int:
        return self.broker.payload_max_bytes

    @property
    def is_connected(self) -> bool:
        return not self._closed

    async def publish(self, subject: str, payload: bytes) -> None:
        self._check_open()
        self._check_size(subject, payload, self.payload_max_bytes)
        self._published += 1
        self.broker.deliver(subject, payload)
        for desk in self.broker.desks_for(subject):
            desk.take(payload, _nobody())
        await asyncio.sleep(0)

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        self._check_open()
        self._check_size(subject, payload, PARTS_TOTAL_MAX_BYTES)
        self._requests += 1
        desks = self.broker.desks_for(subject)
        if not self.broker.deliver(subject, payload) and not desks:
            raise NoResponder(subject)
        ticket: Ticket = asyncio.get_running_loop().create_future()
        for desk in desks:
            desk.take(payload, ticket)
        try:
            async with asyncio.timeout(timeout_s):
                return await ticket
        except TimeoutError as error:
            self._timeouts += 1
            raise RequestTimeout(subject, timeout_s) from error

    async def subscribe(
        self, subject: str, callback: Callback, *, queue_max: int = 1024
    ) -> MemorySubscription:
        self._check_open()
        pump = Pump(callback, queue_max, subject)
        self._pumps.add(pump)
        self.broker.pumps[pump] = subject
        return MemorySubscription(self, pump)

    async def serve(
        self,
        name: str,
        id: str,
        version: str,
        endpoints: Sequence[Endpoint],
        metadata: Mapping[str, str] | None = None,
    ) -> MemoryService:
        self._check_open()
        service = MemoryService(self.broker, name, id, version, endpoints, metadata or {})
        self._services.append(service)
        return service

    async def ensure_stream(self, name: str, subjects: Sequence[str], bytes_max: int) -> None:
        self._check_open()
        stream = self.broker.streams.setdefault(name, _Stream((), bytes_max))
        stream.subjects, stream.bytes_max = tuple(subjects), bytes_max

    async def publish_durable(self, subject: str, payload: bytes, timeout_s: float) -> None:
        self._check_open()
        self._check_size(subject, payload, self.payload_max_bytes)
        streams = self.broker.streams.values()
        if not any(matches(pattern, subject) for each in streams for pattern in each.subjects):
            raise NoResponder(subject)
        self.broker.deliver(subject, payload)
        await asyncio.sleep(0)

    def bucket(self, name: str) -> "MemoryBucket":
        return MemoryBucket(self, name)

    async def close(self) -> None:
        if self._closed:
            return
        for service in self._services:
            await service.close()
        self._closed = True
        for pump in list(self._pumps):
            self.forget_pump(pump)
            await pump.close()

    def forget_pump(self, pump: Pump) -> None:
        """Idempotent."""
        if pump in self._pumps:
            self._pumps.discard(pump)
            self._dropped += pump.stats()["dropped"]
            self.broker.pumps.pop(pump, None)

    def stats(self) -> dict[str, int]:
        open_dropped = sum(pump.stats()["dropped"] for pump in self._pumps)
        return {
            "requests": self._requests,
            "timeouts": self._timeouts,
            "published": self._published,
            "dropped": self._dropped + open_dropped,
            "subscriptions": len(self._pumps),
            "services": len(self._services),
            "reconnects": 0,
            "errors": 0,
        }

    def _check_open(self) -> None:
        if self._closed:
            raise BusClosed

    def _check_size(self, subject: str, payload: bytes, max_bytes: int) -> None:
        if len(payload) > max_bytes:
            raise PayloadTooLarge(subject, len(payload), max_bytes)


def _nobody() -> Ticket:
    """A ticket whose reply nobody waits for."""
    ticket: Ticket = asyncio.get_running_loop().create_future()
    ticket.add_done_callback(lambda done: done.exception())
    return ticket
