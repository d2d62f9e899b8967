"""One connection to a NATS server, kept alive for as long as its owner lives.

nats-py reconnects by itself but gives up for good on some server errors (a payload violation, an
expired login); then a fresh client takes over and every subscription is attached again.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from moonpool.bus.errors import BadServer

log = logging.getLogger(__name__)

RETRY_S = 0.25  # between attempts to reach a server
PING_S = 5  # a dead connection is noticed after about three of these
SILENCE_S = 15.0  # of a server that takes nothing of what was sent: the connection ends
PENDING_MAX_BYTES = 8 << 20  # of commands not yet written to the socket, or waiting for a server
FLUSH_MAX_S = 2.0

SCHEMES = ("nats", "tls", "ws", "wss")

MessageCallback = Callable[[Msg], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Attachment:
    """A subscription as its owner sees it: it outlives the connection."""

    subject: str
    queue_group: str
    callback: MessageCallback
    current: NatsSubscription | None = field(default=None)
    client: Client | None = field(default=None)  # on which it is, or is about to be


class NatsLink:
    """Connects, stays connected, says each change of state once."""

    def __init__(self, urls: list[str], user: str, password: str, name: str) -> None:
        self._urls = urls
        self._user = user
        self._password = password
        self._name = name
        self._own = _own_token(user or next((u for u in map(_user_of, urls) if u), ""))
        self._attached: set[Attachment] = set()
        self._client = Client()
        self._up = False
        self._closing = False
        self._said = ""  # last error logged, so that a repeated one is not
        self._reviving: asyncio.Task[None] | None = None
        self._flushing: set[asyncio.Task[None]] = set()  # each ends within FLUSH_MAX_S
        self.reconnects = 0
        self.errors = 0

    @property
    def client(self) -> Client:
        return self._client

    def new_parts_prefix(self) -> str:
        """Two tokens that nobody else has: where requests in parts come in. Another space than
        that of replies, so that who may ask us can't answer for others."""
        return f"_PARTS{self._own}.{self._client.new_inbox().rpartition('.')[2]}"

    @property
    def last_error(self) -> str:
        """What was logged last since there was a connection; "": nothing."""
        return self._said

    @property
    def is_closed(self) -> bool:
        return self._closing

    @property
    def is_up(self) -> bool:
        return self._up

    async def connect(self) -> None:
        """Returns once a server has accepted us, however long that takes. Cancellable."""
        # One list object per client: nats-py keeps and reorders it.
        try:
            await self._client.connect(
                servers=list(self._urls),
                name=self._name,
                user=self._user or None,
                password=self._password or None,
                inbox_prefix=f"_INBOX{self._own}",
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RETRY_S,  # type: ignore[arg-type]
                ping_interval=PING_S,
                pending_size=PENDING_MAX_BYTES,
                flush_timeout=FLUSH_MAX_S,
            )
        except asyncio.CancelledError:
            self._closing = True  # nobody is to revive what nobody has
            await self._client.close()
            raise
        self._bound_silence()
        self._up = True
        self._said = ""
        log.info("connected to NATS", extra={"server": self._server()})

    async def attach(self, subject: str, queue_group: str, callback: MessageCallback) -> Attachment:
        """Subscribes for as long as this link lives, whatever connections come and go."""
        attachment = Attachment(subject, queue_group, callback)
        self._attached.add(attachment)
        if self._reviving is None and not self._client.is_closed:
            try:
                await self._subscribe(attachment)
            except nats.errors.ConnectionClosedError as error:  # just now: the next client has it
                log.debug("attached later", extra={"subject": subject, "error": repr(error)})
        return attachment

    async def detach(self, attachment: Attachment) -> None:
        """Idempotent."""
        self._attached.discard(attachment)
        current, attachment.current = attachment.current, None
        if current is None:
            return
        try:
            await current.unsubscribe()
        except (nats.errors.ConnectionClosedError, nats.errors.BadSubscriptionError):
            return  # went with its connection
        except nats.errors.ConnectionDrainingError:
            return

    async def settle(self) -> None:
        """Returns once the server has what was sent so far; at once when there is no connection:
        subscriptions are repeated to the next one."""
        client = self._client
        try:
            async with asyncio.timeout(FLUSH_MAX_S):
                # nats-py writes the flush's PING past commands that still wait for its flusher.
                while client.is_connected and client.pending_data_size > 0:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            if client.is_connected:
                await self._flush(client)
        except (TimeoutError, nats.errors.Error) as error:
            log.debug("flush was cut off", extra={"error": repr(error)})

    async def _flush(self, client: Client) -> None:
        """Runs to its end even when its caller is cancelled: a PONG for a flush that was cut off
        ends the library's reading of the connection."""
        flushing = asyncio.create_task(client.flush(timeout=FLUSH_MAX_S))  # type: ignore[arg-type]
        self._flushing.add(flushing)
        flushing.add_done_callback(self._flushing.discard)
        try:
            await asyncio.shield(flushing)
        except asyncio.CancelledError:
            flushing.add_done_callback(lambda over: over.cancelled() or over.exception())
            raise

    async def close(self) -> None:
        """Sends what is pending and closes. Idempotent."""
        self._closing = True
        self._up = False
        if self._flushing:
            await asyncio.wait(self._flushing)
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.wait([self._reviving])
        await self._client.close()

    async def _subscribe(self, attachment: Attachment) -> None:
        client = self._client
        if attachment.client is client:
            return
        attachment.client = client
        attachment.current = await client.subscribe(
            attachment.subject, queue=attachment.queue_group, cb=attachment.callback
        )

    def _bound_silence(self) -> None:
        """nats-py takes a connection for lost only after it has closed it, and closes it only after
        all that was written has left. Cut off with much to say we would wait for the kernel, which
        by itself tries for a quarter of an hour."""
        writer = getattr(self._client._transport, "_io_writer", None)  # has no public name
        sock = writer.get_extra_info("socket") if writer is not None else None
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))

    def _server(self) -> str:
        url = self._client.connected_url
        return f"{url.hostname}:{url.port}" if url is not None else "?"

    async def _on_error(self, error: Exception) -> None:
        self.errors += 1
        text = str(error) or repr(error)
        if text != self._said and not self._closing:
            self._said = text
            state = "connected" if self._up else "waiting for a server"
            servers = ",".join(map(without_password, self._urls))
            log.warning("NATS: %s", text, extra={"state": state, "servers": servers})

    async def _on_disconnected(self) -> None:
        if self._up and not self._closing:
            log.warning("lost the connection to NATS, reconnecting")
        self._up = False

    async def _on_reconnected(self) -> None:
        self._bound_silence()
        self._up = True
        self._said = ""
        self.reconnects += 1
        log.info("reconnected to NATS", extra={"server": self._server()})

    async def _on_closed(self) -> None:
        if not self._closing and self._reviving is None:
            self._reviving = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        """A fresh client with every subscription on it, whatever it takes."""
        log.warning("NATS closed the connection, starting a new one")
        while True:
            await asyncio.sleep(RETRY_S)
            self._client = Client()
            try:
                await self.connect()
                while missing := [a for a in self._attached if a.client is not self._client]:
                    await self._subscribe(missing[0])
            except nats.errors.Error as error:
                await self._on_error(error)
                continue
            if not self._client.is_closed:
                break
        self.reconnects += 1
        self._reviving = None


def servers_of(url: str) -> list[str]:
    """The servers named in it, with commas between. Raises BadServer."""
    urls = [part.strip() for part in url.split(",") if part.strip()]
    if not urls:
        raise BadServer(f"no NATS server is named in {url!r}")
    for each in urls:
        shown = without_password(each)
        try:
            parts = urlsplit(each if "://" in each else f"nats://{each}")
            is_good = bool(parts.hostname) and parts.scheme in SCHEMES and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            raise BadServer(f"{shown!r} is no address of a NATS server, like nats://HOST:4222")
    return urls


def _user_of(url: str) -> str:
    return urlsplit(url).username or ""


def without_password(url: str) -> str:
    """`url` as it may be shown."""
    try:
        password = urlsplit(url).password
    except ValueError:  # not even an address
        return re.sub(r"[^/]*@", "***@", url)
    return url.replace(f":{password}@", ":***@") if password else url


def _own_token(user: str) -> str:
    """What sets our replies apart from other users', as part of a subject's token."""
    return "_" + re.sub(r"[^A-Za-z0-9-]", "_", user) if user else ""
