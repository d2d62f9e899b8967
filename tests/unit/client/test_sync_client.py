"""The store without an event loop: scripts and threads."""

import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from moonpool.client import BadName, DeadlineOver, NoNodes, SyncStoreClient
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
        store._deadline_s = 1e-6
        with pytest.raises(DeadlineOver):
            store.stats()
    with pytest.raises(RuntimeError, match="closed"):
        store.get("new")
    assert "moonpool store" not in {thread.name for thread in threading.enumerate()}


def test_the_example_in_the_docs_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    start = text.index("    import asyncio\n    from moonpool.client")
    example = textwrap.dedent(text[start : text.index("\n\nPlain scripts", start)])
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
