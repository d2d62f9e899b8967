"""Endpoints on NATS: typed replies, requests in parts, and the services API around them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex

import nats.errors
from nats.aio.msg import Msg

from moonpool.bus.base import Endpoint
from moonpool.bus.desk import Desk
from moonpool.bus.errors import PayloadTooLarge
from moonpool.bus.micro import VERBS, control_subjects, describe
from moonpool.bus.nats_link import Attachment, MessageCallback, NatsLink
from moonpool.bus.parts import IDLE_MAX_S, Reassembly
from moonpool.messages.codec import encode
from moonpool.messages.errors import Blame, ErrorInfo, MoonpoolError, PeerError

log = logging.getLogger(__name__)

ERROR_CODE = "Nats-Service-Error-Code"
ERROR_TEXT = "Nats-Service-Error"
PARTS_BYTES = "Moonpool-Parts-Bytes"  # request: may I send that much in parts?
PARTS_TO = "Moonpool-Parts-To"  # reply: yes, to this address

HEADERS_MAX_BYTES = 1024  # what our own headers may take of a message
CLOSE_GRACE_S = 5.0
_TEXT_MAX = 200

_STATUS = {
    Blame.CALLER: "400",
    Blame.PEER: "502",
    Blame.CAPACITY: "503",
    Blame.CORRUPTION: "422",
    Blame.BUG: "500",
}


class NatsService:
    """Made by `NatsBus.serve`."""

    def __init__(
        self, link: NatsLink, name: str, id: str, version: str, metadata: Mapping[str, str]
    ) -> None:
        self._link = link
        self._name = name
        self._id = id
        self._version = version
        self._metadata = metadata
        self._started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._desks: list[Desk[Msg]] = []
        self._attached: list[Attachment] = []
        self._parts = Reassembly()
        self._parts_of: dict[str, Desk[Msg]] = {}  # token -> whose request it will be
        self._parts_prefix = link.new_parts_prefix()
        self._closed = False
        self.on_closed: Callable[[NatsService], None] | None = None

    async def start(self, endpoints: Sequence[Endpoint]) -> None:
        """Returns once the server routes requests here."""
        await self._attach(f"{self._parts_prefix}.*.*", "", self._on_part)
        for endpoint in endpoints:
            desk = Desk(endpoint, self._reply, self._refuse)
            self._desks.append(desk)
            on_request = partial(self._on_request, desk)
            await self._attach(endpoint.subject, endpoint.queue_group, on_request)
        for verb in VERBS:
            for subject in control_subjects(verb, self._name, self._id):
                await self._attach(subject, "", partial(self._on_control, verb))
        await self._link.settle()

    async def close(self) -> None:
        """Takes no more requests, refuses those that wait, gives those that run a few seconds,
        then cancels them. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self.on_closed is not None:
            self.on_closed(self)
        for attachment in self._attached:
            await self._link.detach(attachment)
        await self._link.settle()
        await asyncio.gather(*(desk.close(CLOSE_GRACE_S) for desk in self._desks))

    def stats(self) -> dict[str, int]:
        total = dict(self._parts.stats())
        for desk in self._desks:
            for key, value in desk.stats().items():
                total[key] = total.get(key, 0) + value
        return total

    async def _attach(self, subject: str, queue_group: str, callback: MessageCallback) -> None:
        self._attached.append(await self._link.attach(subject, queue_group, callback))

    async def _on_request(self, desk: Desk[Msg], msg: Msg) -> None:
        if msg.headers is not None and PARTS_BYTES in msg.headers:
            await self._open_parts(desk, msg, msg.headers[PARTS_BYTES])
        else:
            desk.take(msg.data, msg)

    async def _open_parts(self, desk: Desk[Msg], msg: Msg, size_text: str) -> None:
        token = token_hex(8)
        loop = asyncio.get_running_loop()
        try:
            size_bytes = int(size_text)
            self._parts.begin(token, size_bytes, loop.time())
        except ValueError:
            await self._refuse(msg, PeerError(f"{PARTS_BYTES}: {size_text!r}").info())
        except MoonpoolError as error:
            await self._refuse(msg, error.info())
        else:
            self._parts_of[token] = desk
            loop.call_later(IDLE_MAX_S + 1.0, self._sweep)
            await self._send(msg, b"", {PARTS_TO: f"{self._parts_prefix}.{token}"})

    async def _on_part(self, msg: Msg) -> None:
        token, index = msg.subject.split(".")[-2:]
        now_s = asyncio.get_running_loop().time()
        try:
            whole = self._parts.add(token, int(index), msg.data, now_s)
        except MoonpoolError as error:
            self._parts_of.pop(token, None)
            await self._refuse(msg, error.info())
            return
        if whole is not None:
            self._parts_of.pop(token).take(whole, msg)

    def _sweep(self) -> None:
        """Frees the room of requests whose parts stopped coming; comes again while any is open."""
        loop = asyncio.get_running_loop()
        self._parts.expire(loop.time())
        for token in [token for token in self._parts_of if token not in self._parts]:
            del self._parts_of[token]
        if self._parts_of and not self._closed:
            loop.call_later(IDLE_MAX_S, self._sweep)

    async def _on_control(self, verb: str, msg: Msg) -> None:
        body = describe(
            verb,
            self._name,
            self._id,
            self._version,
            self._metadata,
            self._started,
            self._desks,
        )
        await self._send(msg, body, None)

    async def _reply(self, msg: Msg, answer: bytes) -> None:
        limit = self._link.client.max_payload - HEADERS_MAX_BYTES
        if len(answer) > limit:
            raise PayloadTooLarge(f"the requester of {msg.subject}", len(answer), limit)
        await self._send(msg, answer, None)

    async def _refuse(self, msg: Msg, info: ErrorInfo) -> None:
        text = f"{info.code}: {info.message}".encode("ascii", "replace").decode()[:_TEXT_MAX]
        headers = {ERROR_CODE: _STATUS[info.blame], ERROR_TEXT: text}
        await self._send(msg, encode(info), headers)

    async def _send(self, msg: Msg, body: bytes, headers: dict[str, str] | None) -> None:
        if not msg.reply:
            return
        try:
            await self._link.client.publish(msg.reply, body, headers=headers)
        except (nats.errors.Error, OSError) as error:
            # The requester sees a timeout, as it would had the reply been lost on its way.
            log.warning("a reply was lost", extra={"subject": msg.subject, "error": repr(error)})
