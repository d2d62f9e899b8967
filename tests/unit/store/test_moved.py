"""What a node does shows in its metrics, and so at the exporter."""

import tempfile

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.runtime import new_context
from moonpool.settings import StoreSettings
from moonpool.telemetry import names
from services.store.shell import running_node
from tests.support.store_nodes import memory_client
from tests.support.until import until


async def test_a_put_shows_as_bytes_served_and_a_connection() -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
        settings = StoreSettings(id="node-1", run_dir=folder, dram_bytes=16 << 20, host_id="there")
        context = new_context("store", settings, bus)
        async with running_node(context), memory_client(broker) as client:
            await client.put("name", b"x" * 100_000)
            served = context.metrics.counter(names.TRANSFER_SERVED_BYTES, "tcp")
            await until(lambda: served.value >= 100_000)
            assert context.metrics.gauge(names.TRANSFER_ENDPOINTS, "tcp", "served").value >= 1
            assert "moonpool_transfer_served_bytes_total" in context.metrics.render()
        await bus.close()


async def test_holes_between_objects_show_as_fragmentation() -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
        settings = StoreSettings(id="node-1", run_dir=folder, dram_bytes=16 << 20, host_id="here")
        context = new_context("store", settings, bus)
        async with running_node(context) as node, memory_client(broker) as client:
            for name in "abc":
                await client.put(name, bytes(2 << 20))
            gauge = context.metrics.gauge(names.TIER_FRAGMENTATION, "dram")
            assert gauge.value == 0.0
            await client.remove("b")
            assert 0.1 < gauge.value < 0.3  # 2 of 12 free MiB lie between the others
            (told,) = (await client.stats())["node-1"].tiers
            assert told.fragmentation == gauge.value == node.core.residents.tier.fragmentation
        await bus.close()
