"""A tcp wire that keeps what it was given, and delivers it when told to: even when whoever sent it
has long hung up."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

_PIECE_BYTES = 64 << 10


class HoldingWire:
    """`async with HoldingWire((host, port), 20_000) as wire:`; listens on `wire.port`. What is sent
    towards the target on connections made while `holding` is kept, after its first `pass_bytes`,
    until `let_go`."""

    def __init__(self, target: tuple[str, int], pass_bytes: int) -> None:
        self._target = target
        self._pass_bytes = pass_bytes
        self._go = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.holding = False
        self.kept_bytes = 0
        self.delivered = False  # what was kept, as far as the target took it

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def let_go(self) -> None:
        self._go.set()

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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        source, sink = await asyncio.open_connection(*self._target)
        back = asyncio.create_task(self._pass(source, writer))
        try:
            if self.holding:
                await self._keep(reader, sink)
            else:
                await self._pass(reader, sink)
            await back
        except OSError:
            back.cancel()  # one side is gone
        finally:
            for each in (writer, sink):
                each.transport.abort()

    async def _keep(self, reader: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        passed, kept = 0, b""
        with contextlib.suppress(OSError):  # whoever sent it hung up
            while piece := await reader.read(_PIECE_BYTES):
                here = piece[: max(0, self._pass_bytes - passed)]
                passed += len(here)
                sink.write(here)
                kept += piece[len(here) :]
                self.kept_bytes += len(piece) - len(here)
        await self._go.wait()
        try:
            sink.write(kept)
            await sink.drain()
            sink.write_eof()
        finally:
            self.delivered = True

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(_PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
        with contextlib.suppress(OSError):  # it is gone already
            sink.write_eof()
