"""One line: questions come with bytes, or are answered with them. All but the moving of much is
done on the event loop; for that a line has a thread of its own, once it needs one."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from moonpool.messages import MoonpoolError
from moonpool.messages.codec import MalformedMessage, decode, encode
from moonpool.messages.ids import TenantId
from moonpool.messages.keyed import KeyedCall, KeyedEnd, KeyedGet, KeyedPut, KeyedPutDone, Said
from moonpool.messages.store import GetStartRequest, PutWholeRequest
from moonpool.transfer import GrantRefused, vectored
from moonpool.transfer.line_frames import BODY_MAX_BYTES, LineFrame, pack_line
from moonpool.transfer.lines import Line
from moonpool.transfer.vectored import StreamBroken
from services.store.errors import BadRequest, WasAway
from services.store.line_gets import Answer, begin_get, end_get
from services.store.line_puts import LinePut, require_payload
from services.store.node import StoreNode

log = logging.getLogger(__name__)

LOOP_BYTES_MAX = 512 << 10  # above, a thread moves them
STALL_S = 10.0  # within a frame, without any progress
LOOK_S = 1.0  # between looks whether a line that was cut is over
VIEWS_MAX = 512  # in one system call
COUNTS, TOO_LATE = b"\1", b"\0"  # the byte that ends a get's payload


class LineSession:
    """Speaks for one tenant until its capability expires. One question at a time."""

    def __init__(
        self,
        node: StoreNode,
        line: Line,
        tenant: TenantId,
        expires_s: float,
        counters: Counter[str],
        gone: Callable[["LineSession"], None],
        moved: Callable[[int], None],
    ) -> None:
        self._node = node
        self._line = line
        self._tenant = tenant
        self._expires_s = expires_s
        self._counters = counters
        self._gone = gone
        self._moved = moved  # so many bytes of payload
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None  # answers what takes longer than one go
        self._thread: ThreadPoolExecutor | None = None
        self._held: LineFrame | None = None  # until the node is sure of its names
        self._was_held = False

    def begin(self) -> None:
        self._line.watch(self._on_readable)

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def _on_readable(self) -> None:
        if self._task is not None:
            self._line.pause()  # until the answer is out
            return
        try:
            while self._task is None and (frame := self._next_frame()) is not None:
                self._line.asked()
                self._hear(frame)
                if self._task is None:
                    self._line.answered()
        except StreamBroken:
            self.close()
        except (MalformedMessage, BadRequest):  # nothing that one of us would say
            self._counters["line_bad_frames"] += 1
            self.close()

    def _next_frame(self) -> LineFrame | None:
        frame, self._held = self._held, None
        self._was_held = frame is not None
        return frame or self._line.try_frame()

    def _hear(self, frame: LineFrame) -> None:
        """Raises StreamBroken, MalformedMessage, BadRequest."""
        now_s = self._node.now()
        if self._expires_s <= now_s:
            raise StreamBroken(0, "the capability has expired")
        if self._node.presence.is_away(now_s) and self._waits(frame):
            return
        self._counters["line_frames"] += 1
        match frame.kind:
            case Said.GET if not frame.payload_bytes:
                self._get(frame.number, decode(frame.body, KeyedGet))
            case Said.PUT:
                ask = decode(frame.body, KeyedPut)
                self._run(self._put(frame.number, ask, frame.payload_bytes))
            case Said.CALL if not frame.payload_bytes:
                call = decode(frame.body, KeyedCall)
                if not self._call_now(frame.number, call.verb, bytes(call.request)):
                    self._run(self._call(frame.number, call.verb, bytes(call.request)))
            case Said.END if not frame.payload_bytes:
                self._node.core.get_end(decode(frame.body, KeyedEnd).lease, self._node.now())
                self._node.settle()
            case _:
                raise BadRequest(f"a frame of kind {frame.kind}")

    def _waits(self, frame: LineFrame) -> bool:
        """The node was away: readers wait, and writers are told so. False: it waited already."""
        if self._was_held or frame.kind == Said.END:
            return False
        if frame.kind == Said.PUT:
            self._run(self._refuse(frame.number, frame.payload_bytes, WasAway()))
        elif frame.kind == Said.CALL and decode(frame.body, KeyedCall).verb == "put_whole":
            self._fail(frame.number, WasAway())
        else:
            body = memoryview(bytes(frame.body))
            self._held = LineFrame(frame.kind, frame.number, body, frame.payload_bytes)
            self._run(self._node.presence.wait())
        return True

    # Getting.

    def _get(self, number: int, ask: KeyedGet) -> None:
        try:
            answer = begin_get(self._node, self._tenant, ask)
        except MoonpoolError as error:
            self._fail(number, error)
            return
        body = encode(answer.reply)
        if len(body) > BODY_MAX_BYTES:
            end_get(self._node, answer)
            self._fail(number, BadRequest("too large an answer: ask for fewer keys at once"))
            return
        self._moved(answer.payload_bytes)
        head = pack_line(Said.DONE, number, body, answer.payload_bytes)
        views: list[bytes | memoryview] = [*head, *answer.views(self._node.region.view)]
        sent = 0
        if answer.payload_bytes <= LOOP_BYTES_MAX and len(views) < VIEWS_MAX:
            total = sum(map(len, head)) + answer.payload_bytes
            try:
                sent = self._line.send_now([*views, COUNTS] if answer.ranges else views)
            except StreamBroken:
                end_get(self._node, answer)
                raise
            if sent == total:
                end_get(self._node, answer)
                return
        rest = _after(views, sent)
        self._run(self._send(answer, self._apart(lambda: self._send_rest(rest, answer))))

    def _send_rest(self, views: list[bytes | memoryview], answer: Answer) -> None:
        """On the thread."""
        sock = self._line.sock
        flags = socket.MSG_NOSIGNAL | (socket.MSG_MORE if answer.ranges else 0)
        while views:
            sent = sock.sendmsg(views[:VIEWS_MAX], (), flags)
            views = _after(views, sent)
        if answer.ranges:  # all of it was read while the lease held, or it does not count
            in_time = self._node.now() < answer.ends_s
            sock.send(COUNTS if in_time else TOO_LATE, socket.MSG_NOSIGNAL)

    async def _send(self, answer: Answer, sending: asyncio.Future[None]) -> None:
        try:
            await sending
        finally:
            self._line.give_back()
            end_get(self._node, answer)

    # Putting.

    async def _put(self, number: int, ask: KeyedPut, payload_bytes: int) -> None:
        try:
            put = LinePut(self._node, self._tenant, ask.items)
        except MoonpoolError as error:
            await self._refuse(number, payload_bytes, error)
            return
        require_payload(put, payload_bytes)
        self._moved(payload_bytes)
        is_small = payload_bytes <= LOOP_BYTES_MAX
        payload = memoryview(bytearray(payload_bytes if is_small else 0))
        await self._line.take(payload, STALL_S)
        await put.make_room()
        try:
            put.open()
            if not is_small:
                put.admit()
        except MoonpoolError as error:
            await self._refuse(number, 0 if is_small else payload_bytes, error)
            return
        try:
            try:
                if is_small:
                    put.store(payload)
                else:
                    await self._receive(put)
            finally:
                results = put.finish()
            await put.wait_erased()
            await self._answer(number, KeyedPutDone(results))
        finally:
            self._node.settle()  # its writer need not wait for it

    async def _receive(self, put: LinePut) -> None:
        line = self._line
        line.pause()
        receiving = self._apart(
            lambda: put.receive(line.take_waiting, lambda: vectored.shut(line.sock))
        )
        try:
            await receiving
        except GrantRefused as error:
            raise StreamBroken(0, "the put ran out of time") from error
        finally:
            line.give_back()

    # Everything else.

    def _call_now(self, number: int, verb: str, question: bytes) -> bool:
        """Answers what only looks; False: it takes a task."""
        if verb != "get_start":
            return False
        request = decode(question, GetStartRequest)
        if request.lease_s:
            return False
        try:
            self._require_own(request.tenant)
            views = _answer_of(number, self._node.look(request))
        except MoonpoolError as error:
            self._fail(number, error)
            return True
        sent = self._line.send_now(views)
        if sent < sum(map(len, views)):
            self._run(self._line.send(_after(views, sent), STALL_S))
        return True

    async def _call(self, number: int, verb: str, question: bytes) -> None:
        request: msgspec.Struct
        reply: msgspec.Struct
        try:
            if verb == "get_start":
                request = decode(question, GetStartRequest)
                self._require_own(request.tenant)
                reply = await self._node.get_start(request)
            elif verb == "put_whole":
                request = decode(question, PutWholeRequest)
                self._require_own(request.tenant)
                reply = await self._node.put_whole(request)
            else:
                raise BadRequest(f"no verb of a line: {verb!r}")
        except MalformedMessage:
            raise
        except MoonpoolError as error:
            self._fail(number, error)
            return
        await self._answer(number, reply)

    def _require_own(self, tenant: TenantId) -> None:
        if tenant != self._tenant:
            raise BadRequest("this line speaks for another tenant")

    async def _answer(self, number: int, reply: msgspec.Struct) -> None:
        await self._line.send(_answer_of(number, reply), STALL_S)

    async def _refuse(self, number: int, payload_bytes: int, error: MoonpoolError) -> None:
        """Takes what comes all the same: its sender does not listen before it is done."""
        sink = memoryview(bytearray(min(payload_bytes, 256 << 10)))
        while payload_bytes:
            part = sink[: min(payload_bytes, len(sink))]
            await self._line.take(part, STALL_S)
            payload_bytes -= len(part)
        await self._line.send([*pack_line(Said.FAILED, number, encode(error.info()))], STALL_S)

    def _fail(self, number: int, error: MoonpoolError) -> None:
        frame = pack_line(Said.FAILED, number, encode(error.info()))
        if self._line.send_now([*frame]) < sum(map(len, frame)):
            raise StreamBroken(0, "answers are not read")

    def _apart(self, do: Callable[[], None]) -> asyncio.Future[None]:
        """Runs on the line's thread, which has the socket until `give_back`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-line")
        self._line.lend()
        return self._loop.run_in_executor(self._thread, do)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if isinstance(error, BadRequest | MalformedMessage):
                self._counters["line_bad_frames"] += 1
            elif not isinstance(error, OSError | TimeoutError):
                log.error("a line failed", exc_info=error)
                self._counters["line_errors"] += 1
            self.close()
        elif self._line.closed or not self._expires_s:
            self.close()
        else:
            self._line.resume()
            self._line.answered()
            self._on_readable()

    def expire(self) -> None:
        """It answers nothing more."""
        self._expires_s = 0.0
        if self._task is None:
            self.close()

    def close(self) -> None:
        """Cuts the line. What is under way ends by itself, at once. Idempotent."""
        self._line.close()
        if self._task is None:
            if self._thread is not None:
                self._thread.shutdown(wait=False)
            self._gone(self)

    async def wait_closed(self) -> None:
        """After `close`: nothing of this line touches memory any more."""
        while self._task is not None:
            await asyncio.wait([self._task], timeout=LOOK_S)
        if self._thread is not None:
            self._thread.shutdown()


def _answer_of(number: int, reply: msgspec.Struct) -> list[bytes | memoryview]:
    body = encode(reply)
    if len(body) > BODY_MAX_BYTES:
        body = encode(BadRequest("too large an answer").info())
        return [*pack_line(Said.FAILED, number, body)]
    return [*pack_line(Said.DONE, number, body)]


def _after(views: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """What is left of `views` when so much is out."""
    for index, view in enumerate(views):
        if sent < len(view):
            return [memoryview(view)[sent:], *views[index + 1 :]]
        sent -= len(view)
    return []
