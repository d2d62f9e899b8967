"""What Prometheus is told."""

import asyncio

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.messages.metrics import MetricsSnapshotV1
from moonpool.runtime import new_context, publish_metrics
from moonpool.settings import ExporterSettings, load_settings
from moonpool.telemetry import Metrics, names
from services.exporter.page import Page
from services.exporter.shell import Exporter, serve
from tests.support.nats_server import free_port
from tests.support.until import until


def make_snapshot(id: str, value: float = 3.0) -> MetricsSnapshotV1:
    metrics = Metrics()
    metrics.counter(names.TRANSFER_BYTES, "tcp", "read").inc(value)
    metrics.histogram(names.DECODE_STEP_SECONDS).observe(0.02)
    return metrics.snapshot(service="prefill", id=id, epoch="e", unix_s=1.0, uptime_s=1.0)


def test_every_series_says_whose_it_is_and_each_metric_is_described_once() -> None:
    page = Page(silence_s=10.0)
    page.take(make_snapshot("p-1"), 0.0)
    page.take(make_snapshot("p-2", 5.0), 0.0)
    text = page.render(1.0)
    assert (
        'moonpool_transfer_bytes_total{transport="tcp",op="read",service="prefill",id="p-2"} 5.0'
        in text
    )
    assert text.count("# TYPE moonpool_transfer_bytes_total counter") == 1
    assert 'moonpool_decode_step_seconds_bucket{service="prefill",id="p-1",le="+Inf"} 1' in text
    assert 'moonpool_decode_step_seconds_count{service="prefill",id="p-1"} 1' in text


def test_whoever_falls_silent_leaves_the_page() -> None:
    page = Page(silence_s=10.0)
    page.take(make_snapshot("p-1"), 0.0)
    page.take(make_snapshot("p-2"), 9.0)
    assert 'id="p-1"' in page.render(10.0)
    assert 'id="p-1"' not in page.render(10.1)
    assert page.stats()["services"] == 1


async def get(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_metrics_from_the_bus_are_served_over_http() -> None:
    port = free_port()
    settings = load_settings(ExporterSettings, {"MOONPOOL_EXPORTER_PORT": str(port)})
    context = new_context("exporter", settings, MemoryBus(MemoryBroker()))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(serve(context)),
            group.create_task(publish_metrics(context)),
        ]
        seen = b""

        async def shown() -> bool:
            nonlocal seen
            try:
                seen = await get(port, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            except ConnectionRefusedError:
                return False
            return b'service="exporter"' in seen

        await until(shown, every_s=0.1)
        assert seen.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"ready" in await get(port, b"GET /ready HTTP/1.1\r\n\r\n")
        assert b" 404 " in await get(port, b"GET /passwd HTTP/1.1\r\n\r\n")
        assert b" 404 " in await get(port, b"nonsense\r\n\r\n")
        assert await get(port, b"x" * 9000) == b""
        await context.bus.close()
        assert b" 503 " in await get(port, b"GET /ready HTTP/1.1\r\n\r\n")
        for task in tasks:
            task.cancel()


async def test_what_is_no_snapshot_is_counted_and_passed_over() -> None:
    context = new_context(
        "exporter", load_settings(ExporterSettings, {}), MemoryBus(MemoryBroker())
    )
    exporter = Exporter(context)
    await exporter.on_metrics("mp.metrics.x.y", b"{}")
    assert exporter.stats()["malformed"] == 1
