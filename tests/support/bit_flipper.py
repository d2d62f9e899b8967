"""A tcp wire that flips one bit of what passes, at a chosen byte, a chosen number of times."""

import asyncio
import socket
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
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted: set[socket.socket] = set()
        self.flipped = 0
        self.passed_bytes = 0
        self.seen = b""  # the end of what passed

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for what was aborted to be closed
        for connection in self._accepted:  # of tasks that never began
            connection.close()

    def _accept(self) -> None:
        """One connection, and its task, in one turn: nothing is ever between the two."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        self._accepted.add(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        opened: list[asyncio.StreamWriter] = []
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            opened.append(writer)
            source, sink = await asyncio.open_connection(*self._target)
            opened.append(sink)
            await asyncio.gather(
                self._pass(reader, sink, self._ask_at),
                self._pass(source, writer, self._answer_at),
            )
        except (OSError, asyncio.CancelledError):
            pass  # the target is gone, or the test is over
        finally:
            for each in opened:
                each.transport.abort()

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
