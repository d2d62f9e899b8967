"""The bus on a real NATS server."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import (
    APIError,
    NoStreamResponseError,
    NotFoundError,
    ServiceUnavailableError,
)

from moonpool.bus.base import Callback, Endpoint
from moonpool.bus.cancelling import cancel_marks, raise_if_cancelled
from moonpool.bus.errors import (
    BusClosed,
    BusUnavailable,
    NoResponder,
    PayloadTooLarge,
    RequestTimeout,
)
from moonpool.bus.nats_bucket import NatsBucket
from moonpool.bus.nats_link import Attachment, NatsLink, servers_of, without_password
from moonpool.bus.nats_service import (
    ERROR_CODE,
    ERROR_TEXT,
    HEADERS_MAX_BYTES,
    PARTS_BYTES,
    PARTS_TO,
    NatsService,
)
from moonpool.bus.parts import PARTS_TOTAL_MAX_BYTES, cut
from moonpool.bus.pump import Pump
from moonpool.messages.codec import MalformedMessage, decode
from moonpool.messages.errors import ErrorInfo, MoonpoolError, PeerError, error_from

log = logging.getLogger(__name__)

STREAM_READY_MAX_S = 60.0  # how long a stream may take to be made while JetStream starts
_STREAM_RETRY_S = 0.5


class NatsSubscription:
    """Made by `NatsBus.subscribe`."""

    def __init__(self, link: NatsLink, pump: Pump) -> None:
        self._link = link
        self._pump = pump
        self._attachment: Attachment | None = None
        self.on_closed: Callable[[NatsSubscription], None] | None = None

    async def start(self, subject: str) -> None:
        self._attachment = await self._link.attach(subject, "", self._on_message)
        await self._link.settle()

    async def close(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            if self.on_closed is not None:
                self.on_closed(self)
            await self._link.detach(attachment)
        await self._pump.close()

    def stats(self) -> dict[str, int]:
        return self._pump.stats()

    async def _on_message(self, msg: Msg) -> None:
        self._pump.offer(msg.subject, msg.data)


class NatsBus:
    """One connection. Make it with `NatsBus.connect`; close it when done."""

    def __init__(self, link: NatsLink) -> None:
        self._link = link
        self._subscriptions: set[NatsSubscription] = set()
        self._services: set[NatsService] = set()
        self._requests = self._timeouts = self._published = 0
        self._dropped = 0  # by subscriptions that are closed by now

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        user: str = "",
        password: str = "",
        name: str = "",
        wait_s: float | None = None,
    ) -> Self:
        """Waits until one of the comma-separated servers accepts us, and says so in one line per
        change of state: however long that takes, or for `wait_s`; then BusUnavailable. Raises
        BadServer. Cancellable."""
        urls = servers_of(url)
        link = NatsLink(urls, user, password, name)
        try:
            async with asyncio.timeout(wait_s):
                await link.connect()
        except TimeoutError as error:
            why = f": {link.last_error}" if link.last_error else ""
            shown = ", ".join(map(without_password, urls))
            raise BusUnavailable(
                f"no NATS server at {shown} within {wait_s or 0.0:g} s{why}"
            ) from error
        return cls(link)

    @property
    def payload_max_bytes(self) -> int:
        return self._link.client.max_payload - HEADERS_MAX_BYTES

    @property
    def is_connected(self) -> bool:
        return self._link.is_up

    async def publish(self, subject: str, payload: bytes) -> None:
        """While there is no connection messages wait for one, within bounds; BusUnavailable beyond
        them."""
        client = self._open_client()
        if len(payload) > self.payload_max_bytes:
            raise PayloadTooLarge(subject, len(payload), self.payload_max_bytes)
        self._published += 1
        marks = cancel_marks()
        try:
            await client.publish(subject, payload)
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError) as error:
            raise BusUnavailable(f"not connected: {error}") from error
        raise_if_cancelled(marks)

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        self._open_client()
        if len(payload) > self.payload_max_bytes // 2:
            return await self._request_in_parts(subject, payload, timeout_s)
        msg = await self._ask(subject, payload, timeout_s, None)
        return msg.data

    async def subscribe(
        self, subject: str, callback: Callback, *, queue_max: int = 1024
    ) -> NatsSubscription:
        """Returns once the server delivers."""
        self._open_client()
        subscription = NatsSubscription(self._link, Pump(callback, queue_max, subject))
        await subscription.start(subject)
        self._subscriptions.add(subscription)
        subscription.on_closed = self._forget_subscription
        return subscription

    async def serve(
        self,
        name: str,
        id: str,
        version: str,
        endpoints: Sequence[Endpoint],
        metadata: Mapping[str, str] | None = None,
    ) -> NatsService:
        self._open_client()
        service = NatsService(self._link, name, id, version, metadata or {})
        await service.start(endpoints)
        self._services.add(service)
        service.on_closed = self._services.discard
        return service

    async def ensure_stream(self, name: str, subjects: Sequence[str], bytes_max: int) -> None:
        """Makes or adjusts the stream. JetStream may still be starting: tries for a minute, then
        raises BusUnavailable."""
        config = StreamConfig(
            name=name,
            subjects=list(subjects),
            max_bytes=bytes_max,
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE,
        )
        deadline = asyncio.get_running_loop().time() + STREAM_READY_MAX_S
        said = ""
        while True:
            try:
                await self._make_stream(config)
            except (
                ServiceUnavailableError,
                NoStreamResponseError,
                nats.errors.NoRespondersError,
                nats.errors.TimeoutError,
            ) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise BusUnavailable(f"JetStream cannot make {name}: {error!r}") from error
                if repr(error) != said:
                    said = repr(error)
                    log.warning("waiting for JetStream", extra={"stream": name, "error": said})
                await asyncio.sleep(_STREAM_RETRY_S)
            except APIError as error:
                raise PeerError(f"JetStream refused stream {name}: {error}") from error
            else:
                return

    async def publish_durable(self, subject: str, payload: bytes, timeout_s: float) -> None:
        client = self._open_client()
        if len(payload) > self.payload_max_bytes:
            raise PayloadTooLarge(subject, len(payload), self.payload_max_bytes)
        try:
            await client.jetstream().publish(subject, payload, timeout=timeout_s)
        except (NoStreamResponseError, nats.errors.NoRespondersError) as error:
            raise NoResponder(subject) from error
        except nats.errors.TimeoutError as error:
            raise RequestTimeout(subject, timeout_s) from error
        except APIError as error:
            raise PeerError(f"JetStream refused {subject}: {error}") from error
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError) as error:
            raise BusUnavailable(f"not connected: {error}") from error

    def bucket(self, name: str) -> NatsBucket:
        return NatsBucket(name, self._open_client, self.subscribe)

    async def close(self) -> None:
        """Closes services, then subscriptions, then the connection. Idempotent."""
        if self._link.is_closed:
            return
        for service in list(self._services):
            await service.close()
        for subscription in list(self._subscriptions):
            await subscription.close()
        await self._link.close()

    def stats(self) -> dict[str, int]:
        open_dropped = sum(each.stats()["dropped"] for each in self._subscriptions)
        return {
            "requests": self._requests,
            "timeouts": self._timeouts,
            "published": self._published,
            "dropped": self._dropped + open_dropped,
            "subscriptions": len(self._subscriptions),
            "services": len(self._services),
            "reconnects": self._link.reconnects,
            "errors": self._link.errors,
        }

    def _forget_subscription(self, subscription: NatsSubscription) -> None:
        self._subscriptions.discard(subscription)
        self._dropped += subscription.stats()["dropped"]

    def _open_client(self) -> Client:
        if self._link.is_closed:
            raise BusClosed
        return self._link.client

    async def _ask(
        self, subject: str, payload: bytes, timeout_s: float, headers: dict[str, str] | None
    ) -> Msg:
        """One request and its reply, errors made ours."""
        self._requests += 1
        marks = cancel_marks()
        try:
            msg = await self._link.client.request(
                subject, payload, timeout=timeout_s, headers=headers
            )
        except nats.errors.NoRespondersError as error:
            raise NoResponder(subject) from error
        except nats.errors.TimeoutError as error:
            self._timeouts += 1
            raise_if_cancelled(marks)
            raise RequestTimeout(subject, timeout_s) from error
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError) as error:
            raise BusUnavailable(f"not connected: {error}") from error
        raise_if_cancelled(marks)
        if msg.headers is not None and ERROR_CODE in msg.headers:
            raise _error_of(msg)
        return msg

    async def _request_in_parts(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        if len(payload) > PARTS_TOTAL_MAX_BYTES:
            raise PayloadTooLarge(subject, len(payload), PARTS_TOTAL_MAX_BYTES)
        deadline = asyncio.get_running_loop().time() + timeout_s
        opened = await self._ask(subject, b"", timeout_s, {PARTS_BYTES: str(len(payload))})
        address = (opened.headers or {}).get(PARTS_TO)
        if address is None:
            raise PeerError(f"{subject} takes no requests in parts")
        *parts, last = cut(payload, self.payload_max_bytes // 2)
        for index, part in enumerate(parts):
            await self.publish(f"{address}.{index}", bytes(part))
        left_s = max(0.001, deadline - asyncio.get_running_loop().time())
        return (await self._ask(f"{address}.{len(parts)}", bytes(last), left_s, None)).data

    async def _make_stream(self, config: StreamConfig) -> None:
        manager = self._open_client().jetstream()
        assert config.name is not None
        try:
            await manager.stream_info(config.name)
        except NotFoundError:
            await manager.add_stream(config)
        else:
            await manager.update_stream(config)


def _error_of(msg: Msg) -> MoonpoolError:
    """The exception that an error reply stands for."""
    try:
        return error_from(decode(msg.data, ErrorInfo))
    except MalformedMessage:
        headers = msg.headers or {}
        return PeerError(f"{headers.get(ERROR_CODE)}: {headers.get(ERROR_TEXT, '')}")
