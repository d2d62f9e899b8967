"""A tcp wire that keeps what it was given, and delivers it when told to: even when whoever sent it
has long hung up."""

import asyncio
import contextlib

from tests.support.wire import PIECE_BYTES, Wire, end


class HoldingWire(Wire):
    """What is sent towards the target on connections made while `holding` is kept, after its first
    `pass_bytes`, until `let_go`."""

    def __init__(self, target: tuple[str, int], pass_bytes: int) -> None:
        super().__init__(target)
        self._pass_bytes = pass_bytes
        self._go = asyncio.Event()
        self.holding = False
        self.kept_bytes = 0
        self.delivered = False  # what was kept, as far as the target took it

    def let_go(self) -> None:
        self._go.set()

    async def ask(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        if not self.holding:
            await self.carry(source, sink)
            return
        passed, kept = 0, b""
        with contextlib.suppress(OSError):  # whoever sent it hung up
            while piece := await source.read(PIECE_BYTES):
                here = piece[: max(0, self._pass_bytes - passed)]
                passed += len(here)
                sink.write(here)
                kept += piece[len(here) :]
                self.kept_bytes += len(piece) - len(here)
        await self._go.wait()
        try:
            sink.write(kept)
            await sink.drain()
            end(sink)
        finally:
            self.delivered = True
