"""The store over HTTP: real requests to a real port, over a node on an in-memory bus."""

import asyncio
import os
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from moonpool.bus import MemoryBroker
from services.store import http_face
from services.store.http_answers import FaceBusy, WrongRange, read_window
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


async def test_memory_for_bodies_is_waited_for_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_face, "WAIT_MAX_S", 0.05)
    held = http_face.Held(100)
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
