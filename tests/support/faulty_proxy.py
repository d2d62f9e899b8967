"""A TCP proxy in front of a real server, which a test can slow down, cut, or make answer errors."""

import asyncio
from types import TracebackType
from typing import Self

_ERROR = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\n\r\n"
)
_PIECE_BYTES = 64 << 10


class FaultyProxy:
    """`async with FaultyProxy(port) as proxy:`; its port is `proxy.port`. It begins healthy."""

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, target_port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0  # before each piece of an answer
        self.erring = False  # every request is answered 503
        self.refusing = False  # connections are closed at once
        self.corrupting = False  # the last byte of each piece is flipped

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def heal(self) -> None:
        self.delay_s, self.erring, self.refusing, self.corrupting = 0.0, False, False, False

    def cut(self) -> None:
        """Closes what is open."""
        for writer in self._open:
            writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._open.add(writer)
        try:
            if self.refusing:
                return
            upstream, sink = await asyncio.open_connection(*self._target)
            self._open.add(sink)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._requests(reader, sink, writer))
                    group.create_task(self._answers(upstream, writer))
            finally:
                sink.close()
                self._open.discard(sink)
        except* OSError:
            writer.close()  # either side went away
        finally:
            writer.close()
            self._open.discard(writer)

    async def _requests(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        while piece := await source.read(_PIECE_BYTES):
            if self.refusing:
                client.close()
                return
            if self.erring:
                client.write(_ERROR)
                await client.drain()
                client.close()
                return
            sink.write(piece)
            await sink.drain()
        sink.close()

    async def _answers(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(_PIECE_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.corrupting and len(piece) > 2000:
                piece = piece[:-1] + bytes([piece[-1] ^ 1])
            sink.write(piece)
            await sink.drain()
        sink.close()
