"""Listens to heartbeats, to know which services are ready."""

import asyncio
from collections.abc import Iterable

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from moonpool.messages import MalformedMessage, Subjects
from moonpool.messages.codec import decode
from moonpool.messages.registry import Heartbeat


class RegistryWatch:
    """Who said what of itself last. `stats()` counts what it heard."""

    def __init__(self, nats_url: str, prefix: str) -> None:
        self._nats_url = nats_url
        self._subject = Subjects(prefix).heartbeat
        self._client: Client | None = None
        self._heard: dict[str, Heartbeat] = {}
        self._changed = asyncio.Event()
        self._heartbeats = 0
        self._malformed = 0
        self._errors = 0

    async def open(self, timeout_s: float = 10.0) -> None:
        """Connects, trying until the server answers. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self._client is None:
                try:
                    self._client = await nats.connect(
                        self._nats_url,
                        max_reconnect_attempts=-1,
                        reconnect_time_wait=0.1,
                        allow_reconnect=True,
                        connect_timeout=1,
                        error_cb=self._on_error,
                    )
                except (OSError, nats.errors.Error):
                    await asyncio.sleep(0.05)
        await self._client.subscribe(self._subject, cb=self._on_heartbeat)

    async def _on_error(self, error: Exception) -> None:
        self._errors += 1

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            heartbeat = decode(message.data, Heartbeat)
        except MalformedMessage:
            self._malformed += 1
            return
        self._heartbeats += 1
        known = self._heard.get(heartbeat.registration.id)
        self._heard[heartbeat.registration.id] = heartbeat
        if (
            known is None
            or known.state != heartbeat.state
            or self.epoch_of(known) != self.epoch_of(heartbeat)
        ):
            self._changed.set()

    @staticmethod
    def epoch_of(heartbeat: Heartbeat) -> str:
        return heartbeat.registration.epoch

    def epoch(self, name: str) -> str:
        """Of its last start that we heard of; "" when it was never heard."""
        heard = self._heard.get(name)
        return heard.registration.epoch if heard else ""

    def not_ready(self, names: Iterable[str]) -> list[str]:
        return [n for n in names if n not in self._heard or self._heard[n].state != "ready"]

    def model_name(self) -> str:
        """As users ask for it; "" before an instance was heard."""
        models = (h.registration.model for h in self._heard.values())
        return next((m.model for m in models if m is not None), "")

    async def change(self, timeout_s: float) -> None:
        """Returns when somebody appeared or changed state, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def stats(self) -> dict[str, int]:
        return {
            "services": len(self._heard),
            "heartbeats": self._heartbeats,
            "malformed": self._malformed,
            "errors": self._errors,
        }

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
