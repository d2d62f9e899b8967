"""Layers as they come and go: the meeting place of the engine's thread and the event loop."""

import asyncio
import threading

from moonpool.instance.errors import FetchFailed
from moonpool.messages.errors import MoonpoolError


class LayersArrived:
    """Set by the loop as verified layers arrive; awaited by the thread of the engine."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._arrived = 0
        self._failure: MoonpoolError | None = None

    def arrive(self, upto: int) -> None:
        """Layers `[0, upto)` may be read."""
        with self._condition:
            self._arrived = max(self._arrived, upto)
            self._condition.notify_all()

    def fail(self, error: MoonpoolError) -> None:
        with self._condition:
            self._failure = error
            self._condition.notify_all()

    @property
    def failure(self) -> MoonpoolError | None:
        return self._failure

    def wait(self, layer: int, timeout_s: float) -> None:
        """Blocks the calling thread until `layer` may be read. Raises what `fail` was given, or
        FetchFailed after `timeout_s`."""
        with self._condition:
            here = self._condition.wait_for(
                lambda: self._failure is not None or self._arrived > layer, timeout_s
            )
            if not here:
                self._failure = FetchFailed(f"layer {layer} did not come within {timeout_s:g} s")
            if self._failure is not None:
                raise self._failure


class LayersMade:
    """Set by the engine's thread as layers of a step are computed; awaited on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, layers: int) -> None:
        self._loop = loop
        self._made = 0
        self._layers = layers
        self._aborted = False
        self._event = asyncio.Event()

    def made(self, layer: int) -> None:
        """From the engine's thread: this layer's KV is in the pool."""
        self._loop.call_soon_threadsafe(self._set, layer + 1)

    def abort(self) -> None:
        """On the loop: the step failed; no further layer will come."""
        self._aborted = True
        self._event.set()

    def _set(self, upto: int) -> None:
        self._made = upto
        self._event.set()

    async def wait_beyond(self, seen: int) -> int:
        """How many layers are made, once that is more than `seen`; `seen` itself after an abort.
        The step's own end or abort bounds the wait."""
        while self._made <= seen and not self._aborted:
            self._event.clear()
            await self._event.wait()
        return seen if self._aborted and self._made < self._layers else self._made
