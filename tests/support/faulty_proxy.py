"""A TCP proxy in front of a real server, which a test can slow down, cut, or make answer errors."""

import asyncio

from tests.support.wire import PIECE_BYTES, Wire

_ERROR = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\n\r\n"
)


class FaultyProxy(Wire):
    """`async with FaultyProxy(port) as proxy:`; its port is `proxy.port`. It begins healthy."""

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        super().__init__((host, target_port))
        self.delay_s = 0.0  # before each piece of an answer
        self.erring = False  # every request is answered 503
        self.refusing = False  # connections are closed at once
        self.corrupting = False  # the last byte of each piece is flipped

    def heal(self) -> None:
        self.delay_s, self.erring, self.refusing, self.corrupting = 0.0, False, False, False

    def admits(self) -> bool:
        return not self.refusing

    async def ask(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        while piece := await source.read(PIECE_BYTES):
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

    async def answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(PIECE_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.corrupting and len(piece) > 2000:
                piece = piece[:-1] + bytes([piece[-1] ^ 1])
            sink.write(piece)
            await sink.drain()
        sink.close()
