"""The node as a service: what it tells the mesh, how it starts, how it leaves."""

import os
import signal

import pytest

from moonpool.bus import MemoryBroker, MemoryBus, NatsBus
from moonpool.client import StoreClient
from moonpool.kv import unpack_keys
from moonpool.messages import CapacityError, Subjects
from moonpool.messages.codec import decode, encode
from moonpool.messages.events import KvEvents, SnapshotPage, SnapshotRequest
from moonpool.messages.load import LoadReport
from moonpool.messages.registry import Goodbye, Heartbeat
from moonpool.settings import SettingsError, StoreSettings
from services.store.shell import make_core
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess, memory_client, memory_node
from tests.support.until import until

DRAM_BYTES = 16 << 20


class Ear:
    """Keeps what it hears on the bus, by subject."""

    def __init__(self) -> None:
        self.heard: dict[str, list[bytes]] = {}

    async def __call__(self, subject: str, payload: bytes) -> None:
        self.heard.setdefault(subject, []).append(payload)

    def on(self, subject: str) -> list[bytes]:
        return self.heard.get(subject, [])


async def test_what_is_stored_and_removed_is_told_and_a_snapshot_agrees() -> None:
    broker, ear, subjects = MemoryBroker(), Ear(), Subjects()
    bus = MemoryBus(broker)
    await bus.subscribe("mp.>", ear)
    events, snapshot = subjects.kv_events("node-1"), subjects.kv_snapshot("node-1")

    def told() -> tuple[set[bytes], set[bytes]]:
        messages = [decode(each, KvEvents) for each in ear.on(events)]
        assert all(message.tier == "dram" for message in messages)
        return (
            {key for message in messages for key in unpack_keys(message.stored)},
            {key for message in messages for key in unpack_keys(message.removed)},
        )

    async with (
        memory_node(broker, dram_bytes=DRAM_BYTES, host_id="here"),
        memory_client(broker, "node-1") as client,
    ):
        await client.put_many({"a": b"1", "b": b"2"})
        await client.remove("b")
        a, b = client.key("a"), client.key("b")
        await until(lambda: a in told()[0] and b in told()[1])
        reply = await bus.request(snapshot, encode(SnapshotRequest()), 5.0)
        assert decode(reply, SnapshotPage).tiers == {"dram": a}
        for n in range(30):  # more than fits: the oldest go
            await client.put(f"large {n}", bytes(1 << 20))
        await until(lambda: a in told()[1])
    await bus.close()


async def test_load_reports_carry_the_fill_and_a_goodbye_is_said() -> None:
    broker, ear, subjects = MemoryBroker(), Ear(), Subjects()
    bus = MemoryBus(broker)
    await bus.subscribe("mp.>", ear)

    def reports() -> list[LoadReport]:
        return [decode(each, LoadReport) for each in ear.on(subjects.load("node-1"))]

    async with (
        memory_node(broker, dram_bytes=DRAM_BYTES, host_id="here"),
        memory_client(broker, "node-1") as client,
    ):
        await until(lambda: any(r.tiers == {"dram": (0, DRAM_BYTES)} for r in reports()))
        await client.put("a", b"x")
        await until(lambda: reports()[-1].tiers == {"dram": (4096, DRAM_BYTES)})
        beat = decode(ear.on(subjects.heartbeat)[0], Heartbeat)
        assert (beat.registration.role, beat.state) == ("store", "ready")
        assert {e.transport for e in beat.registration.endpoints} == {"shm", "tcp"}
    assert [decode(each, Goodbye).id for each in ear.on(subjects.goodbye)] == ["node-1"]
    await bus.close()


async def test_a_drained_node_refuses_puts_serves_readers_and_leaves() -> None:
    with (
        NatsServer(jetstream=False) as server,
        NodeProcess(server.url, "node-1", dram_bytes=DRAM_BYTES) as node,
    ):
        ear, bus = Ear(), await NatsBus.connect(server.url)
        await bus.subscribe("mp.registry.goodbye", ear)
        await until(lambda: "serving" in node.lines(), 20.0)
        async with StoreClient.connect(server.url, nodes=["node-1"]) as store:
            await store.put("a", b"1")
            calls, tenant, key = store.blocks.calls, store.tenant, store.key("a")
            lease = (await calls.get_start("node-1", tenant, [key], 30.0)).lease
            assert await calls.drain("node-1")
            with pytest.raises(CapacityError) as refused:
                await store.put("b", b"2")
            assert refused.value.code == "draining"
            assert refused.value.elsewhere
            assert await store.get("a") == b"1"
            assert node.process.poll() is None
            assert await calls.get_end("node-1", lease)
            await until(lambda: node.process.poll() is not None, 20.0)
        assert node.process.returncode == 0
        assert len(ear.on("mp.registry.goodbye")) == 1
        await bus.close()


async def test_a_paused_node_keeps_everything_and_its_readers_wait_no_longer_than_they_said() -> (
    None
):
    with (
        NatsServer(jetstream=False) as server,
        NodeProcess(server.url, "node-1", dram_bytes=DRAM_BYTES) as node,
    ):
        await until(lambda: "serving" in node.lines(), 20.0)
        async with StoreClient.connect(server.url, nodes=["node-1"], timeout_s=0.3) as store:
            await store.put("a", b"1")
            node.process.send_signal(signal.SIGSTOP)
            result = (await store.get_many(["a"]))["a"]
            node.process.send_signal(signal.SIGCONT)
            assert result.error is not None
            assert result.error.code == "request_timeout"

            async def is_back() -> bool:
                return (await store.get_many(["a"]))["a"].value == b"1"

            await until(is_back)


async def test_a_node_stops_on_a_signal_and_leaves_nothing() -> None:
    with NatsServer(jetstream=False) as server:
        node = NodeProcess(server.url, "node-1", dram_bytes=DRAM_BYTES)
        with node:
            await until(lambda: "serving" in node.lines(), 20.0)
            assert node.stop() == 0
            left = [name for name in os.listdir(node.log.parent) if name != "node.log"]
            assert left == []
            assert "Traceback" not in node.lines()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dram_bytes": 1 << 50}, "MOONPOOL_DRAM_BYTES=1125899906842624 does not fit"),
        ({"dram_bytes": 100}, "100 bytes hold no page"),
        ({"eviction": "oracle"}, "'oracle' is none of "),
        ({"headroom": 1.5}, "MOONPOOL_HEADROOM"),
        ({"oss_endpoint": "http://127.0.0.1:1"}, "MOONPOOL_OSS_ACCESS_KEY"),
        (
            {"oss_endpoint": "nonsense", "oss_access_key": "a", "oss_secret_key": "b"},
            "MOONPOOL_OSS_ENDPOINT",
        ),
    ],
)
def test_what_cannot_work_stops_the_start_in_one_clear_line(
    settings: dict[str, object], says: str
) -> None:
    with (
        NatsServer(jetstream=False) as server,
        NodeProcess(server.url, "node-1", **settings) as node,
    ):
        assert node.process.wait(20.0) == 2
        assert sum(says in line for line in node.lines().splitlines()) == 1
        assert "Traceback" not in node.lines()


async def test_a_second_node_of_the_same_name_does_not_start() -> None:
    with (
        NatsServer(jetstream=False) as server,
        NodeProcess(server.url, "node-1", dram_bytes=DRAM_BYTES) as first,
    ):
        await until(lambda: "serving" in first.lines(), 20.0)
        with NodeProcess(server.url, "node-1", dram_bytes=DRAM_BYTES) as second:
            assert second.process.wait(20.0) == 2
            assert "'node-1' is on the mesh already" in second.lines()
        assert first.process.poll() is None


async def test_a_folder_that_cannot_keep_dram_is_complained_of_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with memory_node(MemoryBroker(), dram_bytes=DRAM_BYTES, dram_keep_dir="/proc/nope"):
        await until(lambda: "dram will not be kept" in caplog.text)


def test_what_a_sketch_cannot_count_is_refused_and_names_the_setting() -> None:
    for filter_ in ("uses", "sketch", "reuse", "all"):
        make_core(StoreSettings(id="n", dram_bytes=DRAM_BYTES, demote_by=filter_)).check()
    with pytest.raises(SettingsError, match="MOONPOOL_DEMOTE_AFTER_USES"):
        make_core(
            StoreSettings(id="n", dram_bytes=DRAM_BYTES, demote_by="sketch", demote_after_uses=16)
        )
