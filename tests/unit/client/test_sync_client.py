"""The store without an event loop: scripts and threads."""

import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from moonpool.client import BadName, DeadlineOver, NoNodes, SessionOver, SyncStoreClient
from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import TenantId
from moonpool.messages.store import PutItem
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import ROOT, NodeProcess


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with NatsServer() as server, NodeProcess(server.url, "node-1", dram_bytes=16 << 20):
        yield server.url


def test_threads_put_and_get_side_by_side_and_every_call_ends(url: str) -> None:
    with SyncStoreClient.connect(url, wait_s=20.0, deadline_s=20.0) as store:
        with ThreadPoolExecutor(8) as threads:
            values = {f"v{n}": bytes([n]) * (n * 3000) for n in range(40)}
            assert all(threads.map(store.put, values, values.values()))
            assert list(threads.map(store.get, values)) == list(values.values())
        assert store.nodes() == ["node-1"]
        assert store.count("v") == 40
        assert [each.name for each in store.list_names("v3")][:2] == ["v3", "v30"]
        assert store.get_range("v9", 5, 3) == bytes([9]) * 3
        mine = bytearray(40_000)
        region = store.register(mine)
        assert store.get_into("v7", region) == 21_000
        assert mine[:21_000] == values["v7"]
        store.unregister(region)
        assert store.put_many({"v1": b"taken", "new": b""}) == {"v1": False, "new": True}
        assert store.exist_many(["v1", "x"]) == {"v1": True, "x": False}
        assert store.size("v2") == 6000
        assert store.remove_prefix("v") == 40
        assert store.get_many(["new", "v1"])["new"].value == b""
        assert store.pin("new")
        assert store.unpin("new")
        copies = store.replicas("new")
        assert copies is not None
        assert copies.nodes == ["node-1"]
        assert list(store.stats()) == ["node-1"]
        with pytest.raises(BadName):
            store.get("")
        store._loop.deadline_s = 1e-6
        with pytest.raises(DeadlineOver):
            store.stats()
        store._loop.deadline_s = 20.0
    with pytest.raises(RuntimeError, match="closed"):
        store.get("new")
    assert "moonpool store" not in {thread.name for thread in threading.enumerate()}


def test_batches_views_and_memory_need_no_loop_either(url: str) -> None:
    with SyncStoreClient.connect(url, tenant="batches", wait_s=20.0, deadline_s=20.0) as store:
        store.wait_for_nodes(5.0)
        with pytest.raises(NoNodes):
            store.wait_for_nodes(0.01, count=2)
        assert store.upsert_many({"a": b"12345", "b": bytes(40_000)}) == {"a": True, "b": True}
        got = store.get_range_many({"a": (1, 3), "b": (39_998, 9), "c": (0, 1)})
        assert [each.value for each in got.values()] == [b"234", bytes(2), None]
        assert store.pin_many(["a", "c"]) == {"a": True, "c": False}
        assert store.unpin_many(["a", "c"]) == {"a": True, "c": False}
        assert store.secure_many(["a"]) == {"a": False}  # no lower tier
        region = store.allocate(10)
        assert store.get_into_many({"a": (region, 5, 5)}) == {"a": 5}
        assert bytes(region.view) == bytes(5) + b"12345"
        assert store.put_from("d", region, 4, 3, replicas=1)
        store.unregister(region)
        with store.view("b") as seen, store.view("c") as nothing:
            assert seen is not None
            assert (seen.nbytes, seen.readonly, nothing) == (40_000, True, None)
        with pytest.raises(ZeroDivisionError), store.view("d") as seen:
            1 / 0  # noqa: B018
        assert (store.home("a"), store.tenant, len(store.key("a"))) == ("node-1", "batches", 16)
        assert store.own_stats()
        assert store.wipe() == 3


def test_blocks_move_layer_by_layer_without_a_loop(url: str) -> None:
    layers, layer_bytes, tenant = 4, 4096, TenantId("public")
    keys = [BlockKey(bytes([n]) * 16) for n in (1, 2)]
    with SyncStoreClient.connect(url, wait_s=20.0, deadline_s=20.0) as store:
        mine, theirs = store.allocate(layers * layer_bytes), store.allocate(layers * layer_bytes)
        mine.view[:] = bytes(range(256)) * (layers * layer_bytes // 256)
        items = [PutItem(key, layers * layer_bytes, layer_bytes) for key in keys]
        sums = chunk_checksums(mine.view, layer_bytes)
        with store.blocks.open_put("node-1", tenant, items) as put:
            assert (put.node, put.keys, put.wanted) == ("node-1", keys, [0, 1])
            for layer in range(layers):
                put.write_chunks(layer, layer + 1, {0: (mine, 0), 1: (mine, 0)})
            assert put.finish({0: sums}) == ["committed", "abandoned"]
        with store.blocks.open_put("node-1", tenant, items[1:]) as put:
            put.write_chunks(0, layers, {0: (mine, 0)})  # and never finished: abandoned
        assert store.blocks.exist("node-1", tenant, keys) == [True, False]
        with store.blocks.open_get("node-1", tenant, keys) as get:
            assert get.hits == [0]
            for layer in range(layers):
                assert get.read_chunks(layer, layer + 1, {0: (theirs, 0)}) == {}
                end = (layer + 1) * layer_bytes
                assert theirs.view[:end] == mine.view[:end]
            get.renew(20.0)
            assert get.read_all({0: (theirs, 0)}) == set()
            assert (get.finish(), get.corrupt) == (True, set())
        with pytest.raises(SessionOver):
            get.read_chunks(0, 1, {0: (theirs, 0)})
        assert store.stats()["node-1"].leases == 0
        assert store.blocks.remove("node-1", tenant, keys) == ["removed", "miss"]


def test_the_example_in_the_docs_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    start = text.index("    import asyncio\n    from moonpool.client")
    last = "asyncio.run(main())\n"
    example = textwrap.dedent(text[start : text.index(last, start) + len(last)])
    exec(example.replace("nats://127.0.0.1:4222", url), {})
    assert capsys.readouterr().out.splitlines() == [
        "b'other bytes'", "b'other'", "['weights/7']", "1",
    ]  # fmt: skip


def test_a_mesh_without_nodes_says_so() -> None:
    with (
        NatsServer(jetstream=False) as server,
        pytest.raises(NoNodes),
        SyncStoreClient.connect(server.url, wait_s=0.1),
    ):
        pass
