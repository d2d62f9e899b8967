"""Clients that have just come, and whom nobody told which nodes there are."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from moonpool.bus import BusUnavailable, MemoryBroker, NatsBus
from moonpool.client import NoNodes, StoreClient
from moonpool.runtime import new_context
from moonpool.settings import StoreSettings
from services.store.shell import running_node
from tests.support.nats_server import NatsServer, free_port
from tests.support.store_nodes import memory_node
from tests.support.store_worlds import real_mesh
from tests.support.until import until

IDS = ["node-1", "node-2", "node-3"]
VALUES = {f"value {n}": bytes([n]) * (n * 1000) for n in range(40)}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@asynccontextmanager
async def three_nodes(server: NatsServer, mesh: str, folder: Path) -> AsyncIterator[None]:
    """A mesh of their own."""
    async with AsyncExitStack() as stack:
        for id in IDS:
            bus = await NatsBus.connect(server.url)
            stack.push_async_callback(bus.close)
            place = folder / id
            place.mkdir()
            given = StoreSettings(
                id=id, mesh=mesh, run_dir=str(place), dram_bytes=8 << 20, host_id="here"
            )
            await stack.enter_async_context(running_node(new_context("store", given, bus)))
        yield


def newcomer(
    server: NatsServer, mesh: str = "mp", wait_s: float = 5.0
) -> AbstractAsyncContextManager[StoreClient]:
    return StoreClient.connect(server.url, mesh=mesh, host_id="here", wait_s=wait_s)


async def test_a_newcomer_knows_all_nodes_and_finds_what_is_there(
    server: NatsServer, tmp_path: Path
) -> None:
    async with three_nodes(server, "all", tmp_path):
        async with newcomer(server, "all") as first:
            await first.put_many(VALUES)
            assert first.nodes() == IDS
        async with newcomer(server, "all") as store:
            assert store.nodes() == IDS
            assert await store.count() == len(VALUES)
        async with newcomer(server, "all") as store:
            found = await store.get_many(VALUES)
            assert {name: result.value for name, result in found.items()} == VALUES
        for name in list(VALUES)[:4]:
            async with newcomer(server, "all") as store:
                assert not await store.put(name, b"taken")
        async with newcomer(server, "all") as store:
            await store.put("copied", b"c" * 20_000, replicas=3)
        async with newcomer(server, "all") as store:
            copies = await store.replicas("copied")
            assert copies is not None
            assert sorted(copies.nodes) == IDS
        async with newcomer(server, "all") as store:
            assert await store.wipe() > len(VALUES)
        async with newcomer(server, "all") as store:
            assert await store.count() == 0


async def test_the_http_face_of_a_node_that_just_came_speaks_for_all_nodes() -> None:
    broker, port = MemoryBroker(), free_port()
    face: dict[str, Any] = {"store_http_port": port, "store_http_keys": "key-of-acme=acme"}
    async with AsyncExitStack() as stack:
        for id in IDS:
            more = face if id == IDS[-1] else {}
            node = memory_node(broker, id, dram_bytes=8 << 20, host_id="here", **more)
            await stack.enter_async_context(node)
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                headers={"authorization": "Bearer key-of-acme"},
                timeout=20.0,
            )
        )
        reply = await http.get("/store/stats")
        assert sorted(reply.json()) == IDS


async def test_without_a_server_or_a_node_a_newcomer_gives_up_when_its_time_is_over(
    server: NatsServer,
) -> None:
    with pytest.raises(BusUnavailable, match=r"within 0.2 s"):
        async with newcomer(NatsServer(), wait_s=0.2):
            pass
    with pytest.raises(NoNodes):
        async with newcomer(server, "empty", wait_s=0.2):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.slow
async def test_newcomers_know_all_processes_that_live_and_wait_little_for_one_that_does_not() -> (
    None
):
    with real_mesh(3) as mesh:
        await until(lambda: all("serving" in node.lines() for node in mesh.nodes), 30.0)
        for _ in range(5):
            async with newcomer(mesh.server) as store:
                assert store.nodes() == IDS
        stopped, killed = mesh.nodes[0].process, mesh.nodes[1]
        os.kill(stopped.pid, signal.SIGSTOP)
        killed.kill()
        try:
            async with newcomer(mesh.server) as store:
                assert store.nodes() == IDS[2:]
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        async with newcomer(mesh.server) as store:
            assert store.nodes() == [IDS[0], IDS[2]]
