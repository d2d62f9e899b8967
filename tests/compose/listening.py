"""A plain subscriber on the published NATS port: what any other service would see."""

import asyncio
import os
import threading
from types import TracebackType
from typing import Self

import nats
from nats.aio.msg import Msg

from moonpool.messages.audit import AuditEventV1, read_audit
from moonpool.messages.metrics import MetricsSnapshotV1, read_metrics


class Observer:
    """`with Observer(url) as seen:` listens on a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="observer")
        self.audits: list[AuditEventV1] = []
        self.metrics: dict[str, MetricsSnapshotV1] = {}  # the last of each service, by its id

    def __enter__(self) -> Self:
        self._thread.start()
        self._client = self._on_loop(
            nats.connect(
                self._url,
                user="observer",
                password=os.environ["NATS_OBSERVER_PASSWORD"],
                inbox_prefix="_INBOX_observer",
            )
        )
        self._on_loop(self._client.subscribe("mp.audit.>", cb=self._on_audit))
        self._on_loop(self._client.subscribe("mp.metrics.>", cb=self._on_metrics))
        self._on_loop(self._client.flush())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._on_loop(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_loop(self, work):  # type: ignore[no-untyped-def]  # any coroutine, its own result
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20.0)

    async def _on_audit(self, message: Msg) -> None:
        self.audits.append(read_audit(message.data))

    async def _on_metrics(self, message: Msg) -> None:
        snapshot = read_metrics(message.data)
        self.metrics[snapshot.id] = snapshot

    def moved_bytes(self, service: str, transport: str) -> float:
        """By all of one kind of service since they started."""
        return sum(
            sample.value
            for snapshot in self.metrics.values()
            if snapshot.service == service
            for sample in snapshot.samples
            if sample.name == "moonpool_transfer_bytes_total"
            and sample.labels["transport"] == transport
        )
