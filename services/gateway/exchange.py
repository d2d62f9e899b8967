"""One request and its answer over HTTP: everything between a prepared job and the last byte.

The status waits for the first tokens, so that whatever fails before them has a real one. After
them an error is one event, and the stream ends. A client that goes ends everything at once.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moonpool.messages.ids import TenantId
from moonpool.messages.tokens import TokenLogprobs
from moonpool.telemetry import names, request_scope
from services.gateway.body import read_all
from services.gateway.core.account import Account
from services.gateway.core.answer import Answer, Piece
from services.gateway.core.effects import Give
from services.gateway.core.errors import ApiError, Internal, TooLate
from services.gateway.core.fields import ChatBody, CommonBody, read_body
from services.gateway.core.jsonbody import parse_object
from services.gateway.core.promises import Promises, read_promises
from services.gateway.core.shapes import DONE, ChatShape, CompletionShape, Shape, event, usage
from services.gateway.flight import Flight
from services.gateway.gateway import Gateway, Prepared

SEND_GRACE_S = 5.0  # beyond the request's deadline, for a client that reads slowly

Headers = list[tuple[bytes, bytes]]


class Exchange(Response):
    """Sends itself: `await exchange(scope, receive, send)`. Ends when the answer has been sent, or
    the client has gone; gives everything back, counts and audits either way."""

    def __init__(self, gateway: Gateway, kind: type[CommonBody]) -> None:
        super().__init__()
        self._gateway = gateway
        self._kind = kind
        self._account = Account("", 0.0)
        self._request_id = ""
        self._started = False  # the status has been sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, clock = self._gateway, self._gateway.context.clock
        self._account = Account(scope["path"], clock.now())
        gateway.running += 1
        try:
            await self._run(Request(scope, receive), send)
        except ApiError as error:
            await self._fail(error, send)
        except (ClientDisconnect, OSError):
            self._account.cancelled()  # the connection broke while we read or wrote
        except asyncio.CancelledError:
            self._account.cancelled()
            raise
        except Exception:  # the top of a request: nothing may pass without a word
            gateway.context.log.exception("a request failed")
            gateway.context.metrics.counter(names.UNHANDLED_ERRORS, "request").inc()
            await self._fail(Internal(), send)
        finally:
            gateway.running -= 1
            gateway.ended(self._account)

    async def _run(self, request: Request, send: Send) -> None:
        gateway, account = self._gateway, self._account
        account.tenant = gateway.tenants.identify(request.headers.get("authorization"))
        promises = read_promises(request.headers, gateway.limits.of(TenantId(account.tenant)))
        gateway.admit()
        given = parse_object(await read_all(request, gateway.context.settings.body_max_bytes))
        body = read_body(self._kind, given)
        account.model, account.stream = body.model, bool(body.stream)
        timeout_s = gateway.context.settings.request_deadline_s + SEND_GRACE_S
        try:
            async with asyncio.timeout(timeout_s):
                await _while_connected(request.receive, self._answer(body, promises, send))
        except TimeoutError:
            account.failed(TooLate("the client read too slowly"))

    async def _answer(self, body: CommonBody, promises: Promises, send: Send) -> None:
        """Cancelled when the client goes."""
        prepared = await self._gateway.prepare(body, self._account, promises)
        self._request_id = self._account.request_id = prepared.job.request
        with request_scope(prepared.job.request):
            flight = Flight(self._gateway.mesh, prepared.job, prepared.limits, self._account)
            answer = Answer(
                prepared.text.detokenizer(),
                body.stop or (),
                body.min_tokens or 0,
                bool(body.return_token_ids),
            )
            reader = Reader(flight, answer, self._account, self._gateway)
            shape = self._shape(prepared)
            async with flight:
                if body.stream:
                    await self._stream(reader, shape, body.include_usage, send)
                else:
                    await self._whole(reader, shape, send)

    async def _stream(self, reader: "Reader", shape: Shape, with_usage: bool, send: Send) -> None:
        while (piece := await reader.next()) is not None:
            events = b""
            if not self._started:
                await self._start(send, 200, _EVENT_STREAM)
                events = shape.first()
            if piece:
                events += shape.piece(piece)
            if events:
                await _send_part(send, events)
        if not self._started:
            await self._start(send, 200, _EVENT_STREAM)
            await _send_part(send, shape.first())
        tail = reader.tail()
        events = shape.piece(tail) if tail else b""
        events += shape.last(reader.finish)
        if with_usage:
            events += shape.totals(self._usage())
        await _send_part(send, events + DONE, last=True)

    async def _whole(self, reader: "Reader", shape: Shape, send: Send) -> None:
        pieces: list[Piece] = []
        while (piece := await reader.next()) is not None:
            pieces.append(piece)
        pieces.append(reader.tail())
        body = shape.whole(pieces, reader.finish, self._usage())
        await self._start(send, 200, _json_headers(body))
        await _send_part(send, body, last=True)

    async def _fail(self, error: ApiError, send: Send) -> None:
        self._account.failed(error)
        if self._started:
            await _send_part(send, event(error.body()), last=True)
            return
        body = msgspec.json.encode(error.body())
        extra = [(k.lower().encode(), v.encode()) for k, v in error.headers().items()]
        await self._start(send, error.status, _json_headers(body) + extra)
        await _send_part(send, body, last=True)

    async def _start(self, send: Send, status: int, headers: Headers) -> None:
        self._started = True
        if self._request_id:
            headers = [*headers, (b"x-request-id", self._request_id.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})

    def _shape(self, prepared: Prepared) -> Shape:
        job, body, text = prepared.job, prepared.body, prepared.text
        head: dict[str, Any] = {
            "id": job.request,
            "created": int(self._gateway.context.clock.unix()),
            "model": job.model,
            "system_fingerprint": f"fp_{job.fingerprint.hex()[:12]}",
        }
        kind = ChatShape if isinstance(body, ChatBody) else CompletionShape
        return kind(head, text.spell, body.include_usage, bool(body.return_token_ids))

    def _usage(self) -> dict[str, Any]:
        account = self._account
        return usage(account.prompt_tokens, account.completion_tokens, account.cached_tokens)


class Reader:
    """Pieces of text from a flight's tokens, with the time of each token taken."""

    def __init__(self, flight: Flight, answer: Answer, account: Account, gateway: Gateway) -> None:
        self._flight = flight
        self._answer = answer
        self._account = account
        self._clock = gateway.context.clock
        metrics = gateway.context.metrics
        self._ttft = metrics.histograms(names.TTFT).labels(account.model)
        self._tbt = metrics.histogram(names.TBT)
        self.finish = ""

    async def next(self) -> Piece | None:
        """What came since the last call; it may be empty. None at the end. Raises ApiError."""
        given = await self._flight.next() if not self.finish else []
        if not given:
            self._ended()
            return None
        tokens = [token for give in given for token in give.tokens]
        before = self._answer.tokens
        piece = self._answer.push(tokens, _logprobs_of(given))
        self._took(self._answer.tokens - before)
        if self._answer.stopped:
            self._flight.stop("stop")
            self._account.outcome = "stopped"
            self.finish = "stop"
        return piece

    def tail(self) -> Piece:
        """What was held back until the end."""
        return self._answer.finish()

    def _ended(self) -> None:
        """Takes in how it ended. Raises the error that it ended with."""
        end = self._flight.end
        assert end is not None
        if end.error is not None:
            raise end.error
        self.finish = self.finish or end.finish

    def _took(self, tokens: int) -> None:
        seconds = self._account.gave(tokens, self._clock.now())
        if seconds is not None:
            self._tbt.observe(seconds)
        elif self._account.ttft_s is not None:
            self._ttft.observe(self._account.ttft_s)


_EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
]


def _json_headers(body: bytes) -> Headers:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


def _logprobs_of(given: list[Give]) -> list[TokenLogprobs]:
    return [each for give in given for each in give.logprobs]


async def _send_part(send: Send, body: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _while_connected(receive: Receive, work: Awaitable[None]) -> None:
    """Runs `work`; cancels it, and waits for it to give everything back, when the client goes."""
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, listening):
            if not task.done():
                task.cancel()
        await asyncio.wait({working, listening})
    if not working.cancelled():
        working.result()
        return
    raise ClientDisconnect


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
