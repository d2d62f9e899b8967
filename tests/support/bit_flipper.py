"""A tcp wire that flips one bit of what passes, at a chosen byte, a chosen number of times."""

import asyncio
from types import TracebackType
from typing import Self

_PIECE_BYTES = 64 << 10
_SEEN_BYTES = 1 << 20


class BitFlipper:
    """`async with BitFlipper((host, port), answer_at=100) as flipper:`; listens on `flipper.port`.

    `ask_at` and `answer_at` are bytes of each connection, to and from the target; -1: none.
    `always`: a byte of every long piece, in both directions."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        ask_at: int = -1,
        answer_at: int = -1,
        always: bool = False,
    ) -> None:
        self._target = target
        self._ask_at = ask_at
        self._answer_at = answer_at
        self._always = always
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.flipped = 0
        self.passed_bytes = 0
        self.seen = b""  # the end of what passed

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(8):  # who was accepted just now gets a task, and can be cancelled
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for what was aborted to be closed

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            source, sink = await asyncio.open_connection(*self._target)
            try:
                await asyncio.gather(
                    self._pass(reader, sink, self._ask_at),
                    self._pass(source, writer, self._answer_at),
                )
            finally:
                sink.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # the target is gone, or the test is over
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    def _damaged(self, piece: bytes, place: int) -> bytes:
        self.flipped += 1
        return piece[:place] + bytes([piece[place] ^ 0x10]) + piece[place + 1 :]

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, at: int
    ) -> None:
        passed = 0
        while piece := await source.read(_PIECE_BYTES):
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
        sink.write_eof()
