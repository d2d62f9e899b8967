"""A tcp wire to a server: what comes in at one end goes out at the other. What happens to it on the
way is for those made of it."""

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from types import TracebackType
from typing import Self
from weakref import WeakSet

PIECE_BYTES = 64 << 10


class Wire:
    """`async with Wire((host, port)) as wire:`; listens on `wire.port`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted: set[socket.socket] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._made: WeakSet[asyncio.StreamWriter] = WeakSet()  # and may still be sending

    # For those made of it.

    def admits(self) -> bool:
        """Whether a connection made now is passed on; else it is closed at once."""
        return True

    async def ask(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        """Passes on what goes to the target, until its end. `client` is the other direction."""
        await self.carry(source, sink)

    async def answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Passes on what comes from the target, until its end."""
        await self.carry(source, sink)

    async def carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
        end(sink)

    # For tests.

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Closes what is open."""
        for writer in self._open:
            writer.close()

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
        for writer in self._made:
            writer.transport.abort()
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
        self._spawn(self._serve(connection))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, connection: socket.socket) -> None:
        opened: list[asyncio.StreamWriter] = []
        whole = False
        try:
            reader, client = await asyncio.open_connection(sock=connection)
            opened.append(client)
            if not self.admits():
                return
            source, sink = await asyncio.open_connection(*self._target)
            opened.append(sink)
            self._open.update(opened)
            self._made.update(opened)
            back = self._spawn(self._answering(source, client))
            try:
                await self.ask(reader, sink, client)
                await back
                whole = True
            finally:
                back.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # the target is gone, or the test is over
        finally:
            self._open.difference_update(opened)
            for each in opened:
                if whole:
                    each.close()  # after what is still to be sent
                else:
                    each.transport.abort()

    async def _answering(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            await self.answer(source, sink)
        except OSError:
            sink.transport.abort()  # one side is gone: the other hears of it


def end(sink: asyncio.StreamWriter) -> None:
    """Nothing more comes."""
    with contextlib.suppress(OSError):  # it is gone already
        sink.write_eof()
