"""A tcp wire that flips one bit of what passes, at a chosen byte, a chosen number of times."""

import asyncio

from tests.support.wire import PIECE_BYTES, Wire, end

_SEEN_BYTES = 1 << 20


class BitFlipper(Wire):
    """`ask_at` and `answer_at` are bytes of each connection, to and from the target; -1: none.
    `always`: a byte of every long piece, in both directions."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        ask_at: int = -1,
        answer_at: int = -1,
        always: bool = False,
    ) -> None:
        super().__init__(target)
        self._ask_at = ask_at
        self._answer_at = answer_at
        self._always = always
        self.flipped = 0
        self.passed_bytes = 0
        self.seen = b""  # the end of what passed

    async def ask(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        await self._pass(source, sink, self._ask_at)

    async def answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        await self._pass(source, sink, self._answer_at)

    def _damaged(self, piece: bytes, place: int) -> bytes:
        self.flipped += 1
        return piece[:place] + bytes([piece[place] ^ 0x10]) + piece[place + 1 :]

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, at: int
    ) -> None:
        passed = 0
        while piece := await source.read(PIECE_BYTES):
            here = at - passed
            if self._always and len(piece) > 2000:
                piece = self._damaged(piece, len(piece) - 100)
            elif 0 <= here < len(piece) and not self.flipped:
                piece = self._damaged(piece, here)
            passed += len(piece)
            self.passed_bytes += len(piece)
            self.seen = (self.seen + piece)[-_SEEN_BYTES:]
            sink.write(piece)
            await sink.drain()
        end(sink)
