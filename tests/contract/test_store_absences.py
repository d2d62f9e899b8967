"""A node that was away does not undo what was acknowledged meanwhile."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from moonpool.bus import MemoryBroker, NoResponder
from moonpool.client import StoreClient
from moonpool.client.errors import NotNoted
from moonpool.messages import MoonpoolError, TenantId
from moonpool.messages.absence import AbsentRequest, NotesReply, NotesRequest
from services.store.absences import Absences
from services.store.node import StoreNode
from tests.support.nats_server import NatsServer
from tests.support.store_nodes import NodeProcess, memory_client, memory_node
from tests.support.until import until

PUBLIC = TenantId("public")
IDS = ["node-1", "node-2", "node-3"]
MB = 1 << 20
SIZES = [100, 50_000, 5 * MB]  # in the message, whole, striped


@asynccontextmanager
async def three() -> AsyncIterator[tuple[StoreClient, dict[str, StoreNode]]]:
    """Nodes that know one another, in this process, and their client."""
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        nodes = {
            id: await stack.enter_async_context(
                memory_node(broker, id, dram_bytes=8 * MB, host_id="here")
            )
            for id in IDS
        }
        yield await stack.enter_async_context(memory_client(broker, *IDS)), nodes


def at_home(store: StoreClient, node: str, count: int = 3) -> list[str]:
    names = (f"name {n}" for n in range(1000))
    return list(islice((name for name in names if store.home(name) == node), count))


async def tell(store: StoreClient, to: str, about: str, **what: object) -> None:
    request = AbsentRequest(PUBLIC, [about], **what)  # type: ignore[arg-type]
    await store.blocks.calls.absent(to, request)


async def test_a_node_that_is_thought_absent_drops_at_once_what_was_changed() -> None:
    async with three() as (store, _):
        one, other, _ = at_home(store, "node-2")
        await store.put_many({one: b"1", other: b"1"})
        await tell(store, "node-1", "node-2", keys=store.key(one))
        assert [await store.get(one), await store.get(other)] == [None, b"1"]


async def test_what_was_put_there_after_the_change_stays() -> None:
    async with three() as (store, _):
        name = at_home(store, "node-2")[0]
        await store.put(name, b"1")
        await tell(store, "node-1", "node-2", keys=store.key(name), age_s=60.0)
        assert await store.get(name) == b"1"


async def test_a_removed_prefix_takes_names_that_begin_so_and_no_others() -> None:
    async with three() as (store, _):
        await store.put_many({f"{kind}/{n}": b"1" for kind in ("old", "new") for n in range(30)})
        for away in IDS:
            to = next(id for id in IDS if id != away)
            await tell(store, to, away, prefix="old/")
        assert [await store.count("old/"), await store.count("new/")] == [0, 30]


async def test_a_wipe_takes_hard_pins_and_only_its_own_tenant() -> None:
    async with three() as (store, nodes):
        name = at_home(store, "node-2")[0]
        await store.put(name, b"1")
        assert await store.pin(name, "hard")
        await store.blocks.calls.absent(
            "node-1", AbsentRequest(TenantId("x"), ["node-2"], all=True)
        )
        assert await store.get(name) == b"1"
        await tell(store, "node-1", "node-2", all=True)
        assert await store.get(name) is None
        nodes["node-2"].core.check()


async def test_a_reader_never_sees_what_a_node_that_is_back_must_drop() -> None:
    async with three() as (store, nodes):
        names = at_home(store, "node-2", 20)
        await store.put_many(dict.fromkeys(names, b"1"))
        await store.get(names[0])  # a line is open
        notes = nodes["node-3"].core.residents.notes
        notes.changed(PUBLIC, map(store.key, names), nodes["node-3"].now(), ["node-2"])
        nodes["node-2"].presence.leave()
        assert [await store.get(name) for name in names] == [None] * 20
        await until(lambda: not notes.absent)


async def test_puts_to_a_node_that_has_just_come_back_succeed() -> None:
    async with three() as (store, nodes):
        names = at_home(store, "node-2", 4)
        await store.put(names[0], b"1")
        nodes["node-2"].presence.leave()
        await store.upsert(names[0], b"2")
        nodes["node-2"].presence.leave()
        assert await store.put(names[1], b"1" * 50_000)
        nodes["node-2"].presence.leave()
        assert await store.remove(names[0])
        assert await store.count() == 1


async def test_a_peer_that_never_answers_does_not_hold_a_node_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tell, over = Absences.tell, asyncio.Event()

    async def silent(absences: Absences, request: NotesRequest) -> NotesReply:
        if absences.me == "node-3":
            await over.wait()
        return await tell(absences, request)

    monkeypatch.setattr("services.store.absences.ASK_MAX_S", 0.1)
    monkeypatch.setattr(Absences, "tell", silent)
    async with three() as (store, nodes):
        name = at_home(store, "node-2")[0]
        await store.put(name, b"1")
        nodes["node-2"].presence.leave()
        assert await store.get(name) == b"1"
        over.set()


async def test_a_change_is_told_to_those_that_are_there_for_one_that_is_not() -> None:
    broker = MemoryBroker()
    async with (
        memory_node(broker, "node-1", dram_bytes=8 * MB) as node,
        memory_client(broker, "node-1", "ghost") as store,
    ):
        for size in (10, 50_000):
            assert await store.put(f"{size}", b"1" * size)
        await store.remove("nothing")
        await store.remove_prefix("pre")
        await store.wipe()
        notes = node.core.residents.notes.page("ghost", 0, node.now()).notes
        kinds = [(note.kind, note.key or note.prefix.encode()) for note in notes]
        assert set(kinds) == {
            ("key", store.key("10")),
            ("key", store.key("50000")),
            ("key", store.key("nothing")),
            ("prefix", b"pre"),
            ("all", b""),
        }


async def test_a_change_that_nobody_can_keep_for_an_absent_node_is_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def gone(node: str, request: AbsentRequest) -> int:
        raise NoResponder(node)

    broker = MemoryBroker()
    async with (
        memory_node(broker, "node-1", dram_bytes=8 * MB),
        memory_client(broker, "node-1", "ghost") as store,
    ):
        monkeypatch.setattr(store.blocks.calls, "absent", gone)
        with pytest.raises(NotNoted):
            await store.put("name", b"1")
        with pytest.raises(NotNoted):
            await store.remove("name")
        with pytest.raises(NotNoted):
            await store.wipe()


# --- processes ---


class Mesh:
    """Three nodes with disks, of which node-3 goes away."""

    def __init__(self, folder: Path) -> None:
        self.server = NatsServer().__enter__()
        self._folder = folder
        self.nodes = [self._node(id) for id in IDS]

    def _node(self, id: str) -> NodeProcess:
        folder = {"nvme_dir": str(self._folder), "dram_keep_dir": str(self._folder / "kept")}
        sizes = {"dram_bytes": 64 * MB, "nvme_bytes": 64 * MB}
        return NodeProcess(self.server.url, id, host_id=f"host-of-{id}", **folder, **sizes)

    def pause(self) -> None:
        self.nodes[2].process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.nodes[2].process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.nodes[2].__exit__(None, None, None)
        self.nodes[2] = self._node(IDS[2])

    def close(self) -> None:
        self.go_on()
        for node in self.nodes:
            node.__exit__(None, None, None)
        self.server.__exit__(None, None, None)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path_factory.mktemp("disks"))
    try:
        yield mesh
    finally:
        mesh.close()


@asynccontextmanager
async def client(mesh: Mesh) -> AsyncIterator[StoreClient]:
    async with StoreClient.connect(mesh.server.url, wait_s=20.0) as store:
        await store.wait_for_nodes(20.0, 3)
        await store.wipe()
        yield store


async def insist(do: object) -> object:
    """A node is found to be silent by the first who asks it."""
    for _ in range(3):
        try:
            return await do()  # type: ignore[operator]
        except MoonpoolError:
            continue
    return await do()  # type: ignore[operator]


async def see(store: StoreClient, names: list[str], want: list[bytes | None], looks: int) -> None:
    """Whatever is read is what was acknowledged last, at every moment."""
    for _ in range(looks):
        for name, value in zip(names, want, strict=True):
            try:
                got = await store.get(name)
            except MoonpoolError:
                continue
            assert (got and got[:1]) == value, name
        await asyncio.sleep(0.01)
    assert [(v and v[:1]) for v in [await store.get(name) for name in names]] == want


@pytest.mark.slow
async def test_replacing_and_removing_while_the_home_is_paused_counts(mesh: Mesh) -> None:
    async with client(mesh) as store:
        names = at_home(store, "node-3", 6)
        sizes = dict(zip(names, SIZES * 2, strict=True))
        want: list[bytes | None] = [b"2"] * 3 + [None] * 3
        for name, size in sizes.items():
            await store.put(name, b"1" * size)
        mesh.pause()
        for name in names[:3]:
            await insist(lambda name=name: store.upsert(name, b"2" * sizes[name]))
        await insist(lambda: store.remove_many(names[3:]))
        mesh.go_on()
        await see(store, names, want, 60)
        async with StoreClient.connect(mesh.server.url) as fresh:
            await see(fresh, names, want, 1)


@pytest.mark.slow
async def test_a_wipe_while_a_node_is_paused_counts(mesh: Mesh) -> None:
    async with client(mesh) as store:
        await store.put_many({f"a/{n}": b"1" * 500 for n in range(40)}, replicas=2)
        mesh.pause()
        await insist(store.wipe)
        await store.put("new", b"2")
        mesh.go_on()
        await until(lambda: len(store.nodes()) == 3, 10.0)
        assert await store.count() == 1
        await see(store, ["new", "a/1"], [b"2", None], 30)


@pytest.mark.slow
async def test_a_removed_prefix_while_a_node_is_paused_counts(mesh: Mesh) -> None:
    async with client(mesh) as store:
        await store.put_many({f"{kind}/{n}": b"1" for kind in "ab" for n in range(40)})
        mesh.pause()
        await insist(lambda: store.remove_prefix("a/"))
        mesh.go_on()
        await until(lambda: len(store.nodes()) == 3, 10.0)
        assert [await store.count("a/"), await store.count("b/")] == [0, 40]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_what_was_secured_while_the_home_was_down_counts_when_it_is_back(
    mesh: Mesh, how: str
) -> None:
    async with client(mesh) as store:
        names = at_home(store, "node-3", 8)
        await store.put_many(dict.fromkeys(names, b"1" * 50_000))
        assert all((await store.secure_many(names)).values())
        if how == "kill":
            mesh.nodes[2].kill()
        else:
            mesh.nodes[2].stop()
        async with StoreClient.connect(mesh.server.url, wait_s=20.0) as fresh:
            for name in names[:6]:
                await insist(lambda name=name: fresh.upsert(name, b"2" * 50_000))
            assert all((await fresh.secure_many(names[:6])).values())
            await insist(lambda: fresh.remove(names[6]))
        mesh.restart()
        await until(lambda: "serving" in mesh.nodes[2].lines(), 20.0)
        await see(store, names[:7], [b"2"] * 6 + [None], 60)
        await until(lambda: len(store.nodes()) == 3, 20.0)
        assert await store.get(names[7]) == b"1" * 50_000
