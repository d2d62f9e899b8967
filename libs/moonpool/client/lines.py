"""Lines of one client to its nodes: opened when first wanted, lent for one exchange at a time.

A line is a short cut. Where there is none, or it breaks, the bus is asked as ever; so nothing here
is an error of its own but what a question on the bus would meet as well: a node that is gone, or
silent.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import msgspec

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client.node_calls import TIMEOUT_S, NodeCalls
from moonpool.client.watch import answer_of
from moonpool.messages import MoonpoolError, TenantId
from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import ErrorInfo, error_from
from moonpool.messages.keyed import KeyedCall, LineReply, Said
from moonpool.transfer import Nearby, TransferEngine
from moonpool.transfer.base import TransferEngineProtocol
from moonpool.transfer.line_frames import LineFrame, pack_line
from moonpool.transfer.lines import LOOK_S, Line
from moonpool.transfer.vectored import StreamBroken

LINES_MAX = 8  # per node; who finds none free asks on the bus
OPEN_S = 0.4  # for a capability; who takes longer is asked whether it is there
AGAIN_S = 5.0  # after a node had no line for us
CHANGING = ("put_whole",)  # verbs that must not be said twice unasked
FRESH_SHARE = 0.9  # of a capability's time: then a new one is asked for


@dataclass
class _Node:
    """What we have at one node. 0 <= len(idle) <= open <= LINES_MAX."""

    idle: list[Line] = field(default_factory=list)
    open: int = 0
    capability: LineReply = field(default_factory=LineReply)
    ends_s: float = 0.0  # of the capability
    doubted: bool = False  # a new one is asked for before the next line
    not_before_s: float = 0.0  # tried again
    asking: bool = False
    near: Nearby | None = None  # its memory, where we share it


R = TypeVar("R", bound=msgspec.Struct)


class Lines:
    """Belongs to the loop of its transfer engine, which closes what is open at its own end."""

    def __init__(
        self,
        calls: NodeCalls,
        transfer: TransferEngineProtocol,
        tenant: TenantId,
        timeout_s: float = TIMEOUT_S,
        *,
        wanted: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._now = now
        calls.quick = self
        self._transfer = transfer
        self._desk = transfer.lines if wanted and isinstance(transfer, TransferEngine) else None
        self.tenant = tenant
        self.timeout_s = timeout_s  # without progress
        self._nodes: dict[str, _Node] = {}
        self._numbers = count(1)
        self._lent = self._broken = 0

    async def lend(self, node: str) -> Line | None:
        """A line that nobody else uses until `give_back`; None: ask on the bus. Takes time only
        when one must be opened. Raises as a question on the bus, of a node that is silent."""
        if self._desk is None:
            return None
        have = self._nodes.get(node)
        if have is None:
            have = self._nodes[node] = _Node()
        while have.idle:
            line = have.idle.pop()
            if not line.closed:
                self._lent += 1
                line.expecting = True
                return line
            have.open -= 1
        now_s = self._now()
        if have.asking or have.open >= LINES_MAX or now_s < have.not_before_s:
            return None
        return await self._open(node, have, now_s)

    async def _open(self, node: str, have: _Node, now_s: float) -> Line | None:
        assert self._desk is not None
        have.asking = True
        have.open += 1
        line = None
        try:
            if have.doubted or now_s >= have.ends_s:
                have.capability = await self._ask_for_one(node)
                have.ends_s = now_s + have.capability.ttl_s * FRESH_SHARE
                have.doubted = False
                have.near = self._near(have.capability)
            given = have.capability
            if given.key and given.grant is not None:
                opening = self._desk.open(given.grant, given.key)
                line = await answer_of(opening, lambda: self._calls.probe(node))
                self._lent += 1
                line.expecting = True
            else:
                have.not_before_s = now_s + AGAIN_S
        except MoonpoolError as error:
            have.ends_s = 0.0
            have.not_before_s = self._now() + AGAIN_S
            if isinstance(error, NoResponder | RequestTimeout):
                raise
        finally:
            have.asking = False
            have.open -= line is None
        return line

    async def _ask_for_one(self, node: str) -> LineReply:
        """Raises NoResponder, RequestTimeout of a node that is not there for anything else."""
        try:
            return await self._calls.line(node, self.tenant, OPEN_S)
        except RequestTimeout:
            await self._calls.probe(node)
        except MoonpoolError:  # an older node
            pass
        return LineReply()

    def _near(self, given: LineReply) -> Nearby | None:
        if given.grant is None or not isinstance(self._transfer, TransferEngine):
            return None
        return Nearby.of(self._transfer, given.grant)

    def near(self, node: str) -> Nearby | None:
        """The memory of a node that a line was lent to, where we share it."""
        return self._nodes[node].near

    def give_back(self, node: str, line: Line) -> None:
        """After a whole exchange. One that is closed, or whose capability ends soon, is let go."""
        have = self._nodes[node]
        line.expecting = False
        line.resume()
        if line.closed or self._now() >= have.ends_s:
            line.close()
            have.open -= 1
        else:
            have.idle.append(line)

    def drop(self, node: str, line: Line) -> None:
        """In the middle of an exchange: nothing of it touches memory any more."""
        line.close()
        have = self._nodes[node]
        have.open -= 1
        self._broken += 1
        have.doubted = True  # perhaps it is another life of the node by now, or it was taken back

    async def ask(self, node: str, line: Line, kind: Said, body: msgspec.Struct) -> LineFrame:
        """One question and the head of its answer. Raises what the node answered, StreamBroken,
        and of a silent node what the bus would say: NoResponder, RequestTimeout."""
        number = next(self._numbers) & 0xFFFFFFFF
        await self.tell(node, line, *pack_line(kind, number, encode(body)))
        return await self.answer(node, line, number)

    async def tell(
        self, node: str, line: Line, *views: bytes | memoryview, more: bool = False
    ) -> None:
        """Raises StreamBroken, RequestTimeout."""
        try:
            await line.send([*views], self.timeout_s, more=more)
        except TimeoutError as error:
            raise RequestTimeout(node, self.timeout_s) from error

    async def answer(self, node: str, line: Line, number: int, look_s: float = LOOK_S) -> LineFrame:
        """As `ask`, once all was said. It is looked for during `look_s` before we sleep."""
        frame = line.look_frame(look_s)
        if frame is None:
            listening = line.next_frame(self.timeout_s)
            try:
                frame = await answer_of(listening, lambda: self._calls.probe(node))
            except TimeoutError as error:
                raise RequestTimeout(node, self.timeout_s) from error
        if frame.number != number or frame.kind not in (Said.DONE, Said.FAILED):
            raise StreamBroken(0, "no answer to what was asked")
        if frame.kind == Said.FAILED:
            raise error_from(decode(frame.body, ErrorInfo))
        return frame

    async def call(self, node: str, verb: str, request: msgspec.Struct, kind: type[R]) -> R | None:
        """See `Quick`."""
        line = await self.lend(node)
        if line is None:
            return None
        question = KeyedCall(verb, msgspec.Raw(encode(request)))
        done = False
        try:
            reply = decode((await self.ask(node, line, Said.CALL, question)).body, kind)
            done = True
            return reply
        except StreamBroken as error:
            if verb not in CHANGING:
                return None
            await self._calls.probe(node)  # a node that is gone has changed nothing that counts
            raise RequestTimeout(node, self.timeout_s) from error
        finally:
            if done:
                self.give_back(node, line)
            else:
                self.drop(node, line)

    def next_number(self) -> int:
        return next(self._numbers) & 0xFFFFFFFF

    def stats(self) -> dict[str, int]:
        return {
            "lines_open": sum(have.open for have in self._nodes.values()),
            "lines_lent": self._lent,
            "lines_broken": self._broken,
        }
