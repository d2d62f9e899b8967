"""The store over HTTP: real requests to a real port, over a node on an in-memory bus."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.client import StoreClient
from moonpool.runtime.errors import PortTaken
from moonpool.settings import SettingsError
from services.store import http_bodies, http_face
from services.store.http_answers import BodyLate, FaceBusy, WrongRange, read_window
from tests.support.nats_server import free_port
from tests.support.store_nodes import memory_client, memory_node
from tests.support.until import until

ACME, EMU = "key-of-acme", "key-of-emu"


class Face:
    """One HTTP client per tenant."""

    def __init__(self, url: str) -> None:
        self.acme, self.emu, self.nobody = (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=20.0)
            for headers in (
                {"authorization": f"Bearer {ACME}"},
                {"authorization": f"Bearer {EMU}"},
                {},
            )
        )


@pytest_asyncio.fixture
async def face() -> AsyncIterator[Face]:
    port = free_port()
    broker = MemoryBroker()
    async with memory_node(
        broker,
        "a",
        dram_bytes=64 << 20,
        host_id="h",
        store_http_port=port,
        store_http_keys=f"{ACME}=acme,{EMU}=emu",
    ):
        face = Face(f"http://127.0.0.1:{port}")
        async with memory_client(broker, "a"):
            await until(lambda: is_up(face))
        yield face
        for client in (face.acme, face.emu, face.nobody):
            await client.aclose()


async def is_up(face: Face) -> bool:
    reply = await face.acme.get("/store/stats")
    return reply.status_code == 200 and bool(reply.json())


async def test_a_value_goes_in_and_comes_out_whole_and_in_parts(face: Face) -> None:
    value = os.urandom((5 << 20) + 17)
    put = await face.acme.put("/store/values/weights/layer 7", content=value)
    assert (put.status_code, put.json()["size_bytes"]) == (201, len(value))
    assert not put.json()["durable"]
    again = await face.acme.put(
        "/store/values/weights/layer 7?replace=true&durable=true", content=value
    )
    assert again.status_code == 202  # this node has no lower tier
    got = await face.acme.get("/store/values/weights/layer 7")
    assert (got.status_code, got.content) == (200, value)
    part = await face.acme.get(
        "/store/values/weights/layer 7", headers={"range": "bytes=1000000-3999999"}
    )
    assert (part.status_code, part.content) == (206, value[1_000_000:4_000_000])
    assert part.headers["content-range"] == f"bytes 1000000-3999999/{len(value)}"
    tail = await face.acme.get("/store/values/weights/layer 7", headers={"range": "bytes=-17"})
    assert tail.content == value[-17:]
    head = await face.acme.head("/store/values/weights/layer 7")
    assert head.headers["content-length"] == str(len(value))
    beyond = await face.acme.get(
        "/store/values/weights/layer 7", headers={"range": f"bytes={len(value)}-"}
    )
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (416, "wrong_range")


async def test_names_are_taken_replaced_listed_and_removed(face: Face) -> None:
    for name in ("a/1", "a/2", "b"):
        assert (await face.acme.put(f"/store/values/{name}", content=b"x")).status_code == 201
    taken = await face.acme.put("/store/values/b", content=b"y")
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "name_taken")
    assert (await face.acme.put("/store/values/b?replace=true", content=b"y")).status_code == 201
    assert (await face.acme.get("/store/values/b")).content == b"y"
    listed = (await face.acme.get("/store/values", params={"prefix": "a/"})).json()
    assert [each["name"] for each in listed["values"]] == ["a/1", "a/2"]
    some = (await face.acme.get("/store/values", params={"limit": 2})).json()
    assert (len(some["values"]), some["more"]) == (2, True)
    assert (await face.acme.delete("/store/values/b")).status_code == 204
    assert (await face.acme.delete("/store/values/b")).status_code == 404
    gone = await face.acme.get("/store/values/b")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
    assert (await face.acme.head("/store/values/b")).status_code == 404


async def test_tenants_see_their_own_and_strangers_nothing(face: Face) -> None:
    await face.acme.put("/store/values/secret", content=b"of acme")
    assert (await face.emu.get("/store/values/secret")).status_code == 404
    assert (await face.emu.get("/store/values")).json()["values"] == []
    assert (await face.emu.put("/store/values/secret", content=b"of emu")).status_code == 201
    assert (await face.acme.get("/store/values/secret")).content == b"of acme"
    refused = await face.nobody.get("/store/values/secret")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "www-authenticate" in refused.headers
    (told,) = (await face.emu.get("/store/stats")).json().values()
    assert list(told["tenants"]) == ["emu"]


async def test_bodies_are_bounded_said_or_not(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_face, "VALUE_MAX_BYTES", 1000)

    async def more() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(100)

    said = await face.acme.put("/store/values/large", content=bytes(1001))
    unsaid = await face.acme.put("/store/values/large", content=more())
    assert (said.status_code, unsaid.status_code) == (413, 413)
    assert said.json()["error"]["code"] == "body_too_large"
    assert (await face.acme.put("/store/values/large", content=bytes(1000))).status_code == 201
    bad = await face.acme.put("/store/values/" + "n" * 5000, content=b"x")
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "bad_name")


async def test_a_body_that_stalls_ends_and_bars_nobody_meanwhile(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_bodies, "IDLE_MAX_S", 0.5)
    monkeypatch.setattr(http_bodies, "WAIT_MAX_S", 0.1)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(250_000)

    async def stalled(how_long: str) -> str:
        """All that is answered, until the connection ends."""
        url = face.acme.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"PUT /store/values/stuck HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ACME}"
        writer.write(f"{head}\r\n{how_long}\r\n\r\n1\r\nx\r\n".encode())
        async with asyncio.timeout(10.0):
            answer = await reader.read()
        writer.close()
        return answer.decode()

    async with asyncio.TaskGroup() as group:
        stuck = [
            group.create_task(stalled(how_long))
            for how_long in ["transfer-encoding: chunked"] * 20 + ["content-length: 1000000"]
        ]
        good = await face.acme.put("/store/values/good", content=chunks())
        assert (good.status_code, good.json()["size_bytes"]) == (201, 10_000_000)
        assert not any(task.done() for task in stuck)
    for each in stuck:
        assert each.result().startswith("HTTP/1.1 408 ")
        assert '"body_timeout"' in each.result()
    assert (await face.acme.head("/store/values/stuck")).status_code == 404


async def test_a_body_that_drips_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bodies, "PATIENCE_S", 0.05)

    async def drips() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.001)
            yield b"x"

    async def steady() -> AsyncIterator[bytes]:
        for _ in range(20):
            await asyncio.sleep(0.001)
            yield bytes(1 << 20)

    held = http_bodies.Held(64 << 20)
    share = http_bodies.Share(held)
    with pytest.raises(BodyLate):
        await http_bodies.read_body(drips(), None, 1 << 30, share)
    assert share.size_bytes == http_bodies.STEP_BYTES  # and not all that might have come
    await share.give_back()
    assert len(await http_bodies.read_body(steady(), None, 1 << 30, share)) == 20 << 20
    assert held.stats() == {"held_bytes": 20 << 20}
    await share.give_back()
    assert held.stats() == {"held_bytes": 0}


async def test_all_refusals_look_alike(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    for method, path, status, code in [
        ("GET", "/store/nothing", 404, "route_not_found"),
        ("POST", "/store/values/x", 405, "method_not_allowed"),
        ("GET", "/store/values?limit=many", 400, "invalid_value"),
        ("PUT", "/store/values/x?replace=perhaps", 400, "invalid_value"),
        ("GET", "/store/values/%ff", 400, "bad_name"),
        ("PUT", "/store/values/a%ffb", 400, "bad_name"),
        ("GET", "/store/values?prefix=%c3", 400, "bad_name"),
    ]:
        reply = await face.acme.request(method, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), path
        assert set(reply.json()["error"]) == {"code", "message"}
    wrong = await face.acme.post("/store/values/x")
    assert "allow" in wrong.headers
    name = "/store/values/%C3%BCn%C3%AF%EF%BF%BD"  # U+FFFD itself is a letter like any other
    assert (await face.acme.put(name, content=b"x")).status_code == 201
    assert (await face.acme.get(name)).content == b"x"
    beyond = await face.acme.get(name, headers={"range": "bytes=5-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */1")

    async def size(store: StoreClient, name: str) -> int:
        raise KeyError("secret")

    monkeypatch.setattr(StoreClient, "size", size)
    reply = await face.acme.get(name)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in reply.text


@pytest.mark.parametrize("trouble", ["short key", "taken port"])
async def test_a_face_that_cannot_be_ends_the_start_before_anybody_hears_of_the_node(
    trouble: str,
) -> None:
    broker, heard = MemoryBroker(), list[str]()
    bus = MemoryBus(broker)

    async def hear(subject: str, payload: bytes) -> None:
        heard.append(subject)

    await bus.subscribe("mp.registry.>", hear)
    with socket.create_server(("127.0.0.1", 0)) as other:
        keys, port = "short=acme", free_port()
        if trouble == "taken port":
            keys, port = "", other.getsockname()[1]
        with pytest.raises((SettingsError, PortTaken), match="STORE_HTTP"):
            async with memory_node(
                broker,
                "a",
                dram_bytes=4 << 20,
                host_id="h",
                store_http_port=port,
                store_http_keys=keys,
            ):
                pass
    await bus.close()
    assert heard == []


async def test_memory_for_bodies_is_waited_for_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_bodies, "WAIT_MAX_S", 0.05)
    held = http_bodies.Held(100)
    await held.take(60)
    with pytest.raises(FaceBusy):
        await held.take(60)
    async with asyncio.TaskGroup() as group:
        group.create_task(held.take(100))
        group.create_task(held.give_back(60))
    assert held.stats() == {"held_bytes": 100}


@pytest.mark.parametrize(
    ("header", "window"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=5-", (5, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=3-99", (3, 10)),
        ("bytes=1-2,4-5", None),
        ("lines=1-2", None),
        ("bytes=-", None),
    ],
)
def test_a_range_header_means_one_window_or_everything(
    header: str | None, window: tuple[int, int] | None
) -> None:
    assert read_window(header, 10) == window


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=7-3", "bytes=-0"])
def test_a_range_outside_the_value_is_refused(header: str) -> None:
    with pytest.raises(WrongRange):
        read_window(header, 10)
