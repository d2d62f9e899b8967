"""The exporter as a process: a subscription, and a very small HTTP server."""

import asyncio

from moonpool.messages.codec import MalformedMessage
from moonpool.messages.errors import CallerError
from moonpool.messages.metrics import read_metrics
from moonpool.runtime import ServiceContext
from moonpool.settings import ExporterSettings
from services.exporter.page import Page

REQUEST_MAX_BYTES = 8192
REQUEST_MAX_S = 5.0
CONNECTIONS_MAX = 32
_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Context = ServiceContext[ExporterSettings]


class PortTaken(CallerError):
    code = "port_taken"


class Exporter:
    """Answers `GET /metrics` and `/ready`, one request per connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = context.clock
        self.page = Page(context.settings.exporter_silence_s)
        self._open = 0
        self._refused = 0
        self._malformed = 0

    async def on_metrics(self, subject: str, payload: bytes) -> None:
        try:
            snapshot = read_metrics(payload)
        except MalformedMessage:
            self._malformed += 1
            return
        self.page.take(snapshot, self._clock.now())

    async def on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Never raises; a client that stalls is hung up on."""
        try:
            if self._open >= CONNECTIONS_MAX:
                self._refused += 1
                return
            self._open += 1
            try:
                async with asyncio.timeout(REQUEST_MAX_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
            finally:
                self._open -= 1
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            self._refused += 1
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        path = words[1].split(b"?")[0] if len(words) == 3 else b""
        if words[0] != b"GET" or path not in (b"/metrics", b"/ready"):
            return _response("404 Not Found", "GET /metrics\n")
        if not self._context.bus.is_connected:
            return _response("503 Service Unavailable", "no connection to NATS\n")
        if path == b"/ready":
            return _response("200 OK", "ready\n")
        return _response("200 OK", self.page.render(self._clock.now()))

    def stats(self) -> dict[str, int]:
        counts = {"connections": self._open, "refused": self._refused}
        return {**self.page.stats(), **counts, "malformed": self._malformed}


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: {_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode() + body


async def serve(context: Context) -> None:
    """Until cancelled. Raises PortTaken."""
    settings = context.settings
    exporter = Exporter(context)
    subscription = await context.bus.subscribe(
        context.subjects.metrics("*", "*"), exporter.on_metrics, queue_max=4096
    )
    try:
        server = await asyncio.start_server(
            exporter.on_connection,
            settings.exporter_host,
            settings.exporter_port,
            limit=REQUEST_MAX_BYTES,
        )
    except OSError as error:
        await subscription.close()
        raise PortTaken(
            f"cannot listen on {settings.exporter_host} port {settings.exporter_port} "
            f"({error.strerror}): set MOONPOOL_EXPORTER_HOST and MOONPOOL_EXPORTER_PORT"
        ) from error
    try:
        host, port = server.sockets[0].getsockname()[:2]
        context.log.info("listening", extra={"url": f"http://{host}:{port}/metrics"})
        await asyncio.Event().wait()
    finally:
        server.close()
        await subscription.close()
