"""The bus seam: requests, publishes and endpoints by subject, whoever carries them.

Implementations: `nats.py` (a real NATS server, endpoints registered with the NATS services API) and
`memory.py` (one process, for tests and the simulator). Both pass one contract suite.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Handler = Callable[[bytes], Awaitable[bytes]]  # a MoonpoolError becomes a typed error reply
Callback = Callable[[str, bytes], Awaitable[None]]  # (subject, payload)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One served subject. Requests run as tasks, at most `concurrency_max` at a time."""

    name: str  # as `nats micro ls` shows it: letters, digits, '-', '_'
    subject: str
    handler: Handler
    queue_group: str = ""  # "": every request to this subject is ours alone
    concurrency_max: int = 64
    pending_max: int = 1024  # waiting requests beyond which CapacityError is answered at once


class Subscription(Protocol):
    async def close(self) -> None:
        """Idempotent. After it returns the callback is not called again."""

    def stats(self) -> dict[str, int]: ...


class Service(Protocol):
    """Endpoints registered under one service name and id."""

    async def close(self) -> None: ...

    def stats(self) -> dict[str, int]: ...


class Bucket(Protocol):
    """Named values that outlive every process of a mesh. Keys hold letters, digits, `-`, `_` and
    dots. Every method raises BusUnavailable while the servers do not answer, PeerError when they
    refuse."""

    async def put(self, key: str, value: bytes) -> None:
        """Acknowledged: durable."""

    async def delete(self, key: str) -> None:
        """No error when it is not there."""

    async def get(self, key: str) -> bytes | None: ...

    async def entries(self) -> dict[str, bytes]:
        """All of them."""

    async def watch(self, on_change: Callable[[str], None]) -> Subscription:
        """Calls back with each key that changes from now on; what changes while there is no
        connection is not told, so read `entries` again now and then."""


class Bus(Protocol):
    @property
    def payload_max_bytes(self) -> int:
        """What one message may hold, headers' share already taken off."""

    @property
    def is_connected(self) -> bool:
        """Whether messages flow right now."""

    async def publish(self, subject: str, payload: bytes) -> None:
        """At most once. Raises PayloadTooLarge, BusClosed."""

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """The one reply. Raises NoResponder at once when nobody serves the subject (proof of death
        for a subject that names one process), RequestTimeout, PayloadTooLarge, or the responder's
        own MoonpoolError. A payload over half of `payload_max_bytes` goes in parts when the
        subject names one process, and is put together within bounds on the other side."""

    async def subscribe(
        self, subject: str, callback: Callback, *, queue_max: int = 1024
    ) -> Subscription:
        """Calls back in order, one at a time. `subject` may hold `*` and `>`. When more than
        `queue_max` messages wait, the oldest are dropped and counted in `stats()["dropped"]`."""

    async def serve(
        self,
        name: str,
        id: str,
        version: str,
        endpoints: Sequence[Endpoint],
        metadata: Mapping[str, str] | None = None,
    ) -> Service:
        """Registers with `$SRV.PING/INFO/STATS` and answers until closed."""

    async def ensure_stream(self, name: str, subjects: Sequence[str], bytes_max: int) -> None:
        """A durable JetStream stream over `subjects`, oldest dropped beyond `bytes_max`."""

    async def publish_durable(self, subject: str, payload: bytes, timeout_s: float) -> None:
        """Acknowledged by the stream. Raises RequestTimeout or NoResponder."""

    def bucket(self, name: str) -> Bucket:
        """Letters, digits, `-` and `_`. Made when it is first used."""

    async def close(self) -> None:
        """Closes services, then subscriptions, then the connection. Idempotent."""

    def stats(self) -> dict[str, int]:
        """requests, timeouts, published, dropped, subscriptions, services, reconnects, errors"""
