"""What only a real server shows: discovery, restarts, limits, and the order of starting."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator

import nats
import pytest
from nats.aio.msg import Msg

from moonpool.bus import (
    BadServer,
    BusUnavailable,
    Endpoint,
    NatsBus,
    NoResponder,
    PayloadTooLarge,
    RequestTimeout,
    nats_link,
)
from moonpool.messages import PeerError
from tests.support.nats_server import NatsServer
from tests.support.until import until


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


async def echo(payload: bytes) -> bytes:
    return payload


async def test_services_are_found_by_the_nats_services_api(server: NatsServer) -> None:
    bus = await NatsBus.connect(server.url)
    endpoints = [
        Endpoint("plan", "mp.conductor.plan", echo, queue_group="conductor"),
        Endpoint("hello", "mp.registry.hello", echo),
    ]
    service = await bus.serve("conductor", "c1", "0.1.0", endpoints, {"epoch": "e1"})
    await bus.request("mp.conductor.plan", b"x", 5.0)
    client = await nats.connect(server.url)
    for subject in ("$SRV.INFO", "$SRV.INFO.conductor", "$SRV.INFO.conductor.c1"):
        info = json.loads((await client.request(subject)).data)
        assert info["type"] == "io.nats.micro.v1.info_response"
        assert (info["name"], info["id"], info["version"]) == ("conductor", "c1", "0.1.0")
        assert info["metadata"] == {"epoch": "e1"}
        assert info["endpoints"][0] == {
            "name": "plan",
            "subject": "mp.conductor.plan",
            "queue_group": "conductor",
            "metadata": {},
        }
    ping = json.loads((await client.request("$SRV.PING.conductor")).data)
    assert ping["type"] == "io.nats.micro.v1.ping_response"
    stats = json.loads((await client.request("$SRV.STATS.conductor.c1")).data)
    assert stats["endpoints"][0]["num_requests"] == 1
    assert stats["endpoints"][0]["num_errors"] == 0
    await service.close()
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("$SRV.PING.conductor")
    await client.close()
    await bus.close()


async def test_an_error_reply_follows_the_services_api(server: NatsServer) -> None:
    bus = await NatsBus.connect(server.url)

    async def lost(payload: bytes) -> bytes:
        raise PeerError("peer\nis away")

    await bus.serve("store", "n1", "0.1.0", [Endpoint("x", "t.err", lost)])
    client = await nats.connect(server.url)
    reply = await client.request("t.err")
    assert reply.headers is not None
    assert reply.headers["Nats-Service-Error-Code"] == "502"
    assert reply.headers["Nats-Service-Error"].startswith("peer_lost: peer")
    await client.close()
    await bus.close()


async def test_an_error_reply_of_a_foreign_service_is_a_peer_error(server: NatsServer) -> None:
    bus = await NatsBus.connect(server.url)
    client = await nats.connect(server.url)

    async def answer(msg: Msg) -> None:
        headers = {"Nats-Service-Error-Code": "500", "Nats-Service-Error": "no idea"}
        await client.publish(msg.reply, b"not ours", headers=headers)

    await client.subscribe("t.foreign", cb=answer)
    await client.flush()
    with pytest.raises(PeerError, match="500: no idea"):
        await bus.request("t.foreign", b"", 5.0)
    with pytest.raises(PeerError):
        await bus.request("t.foreign", bytes(bus.payload_max_bytes), 5.0)
    await client.close()
    await bus.close()


async def test_connecting_waits_for_the_server_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server = NatsServer()
    connecting = asyncio.create_task(NatsBus.connect(server.url))
    await until(lambda: "waiting for a server" in str([vars(r) for r in caplog.records]))
    await asyncio.sleep(0.6)  # long enough for more attempts, which must stay silent
    with server:
        bus = await asyncio.wait_for(connecting, 10.0)
        ours = [r for r in caplog.records if r.name.startswith("moonpool.bus")]
        assert [r.levelname for r in ours] == ["WARNING", "INFO"]
        await bus.close()


async def test_connecting_can_be_cancelled() -> None:
    connecting = asyncio.create_task(NatsBus.connect(NatsServer().url))
    await asyncio.sleep(0.05)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_connecting_within_a_time_ends_with_it_and_leaves_nothing_behind() -> None:
    url = NatsServer().url.replace("nats://", "nats://who:secret@")
    with pytest.raises(BusUnavailable, match=r"who:\*\*\*@.* within 0.3 s: .*failed") as caught:
        await NatsBus.connect(url, wait_s=0.3)
    assert "secret" not in str(caught.value)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("url", ["", " , ", "http://a:1", "nats://[::", "nats://u:secret@a:x"])
async def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(BadServer) as caught:
        await NatsBus.connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("crash", [False, True])
async def test_everything_works_again_after_the_server_restarts(
    server: NatsServer, caplog: pytest.LogCaptureFixture, crash: bool
) -> None:
    caplog.set_level(logging.INFO)
    here, there = await NatsBus.connect(server.url), await NatsBus.connect(server.url)
    seen: list[bytes] = []

    async def note(subject: str, payload: bytes) -> None:
        seen.append(payload)

    await here.subscribe("t.note", note)
    await there.serve("store", "n1", "0.1.0", [Endpoint("echo", "t.echo", echo)])
    if crash:
        server.kill()
    else:
        server.stop()
    await until(lambda: not here.is_connected and not there.is_connected)
    with pytest.raises((RequestTimeout, BusUnavailable)):
        await here.request("t.echo", b"lost", 0.1)
    server.start()
    await until(lambda: here.is_connected and there.is_connected)
    await until(lambda: _echoes(here))
    await there.publish("t.note", b"back")
    await until(lambda: b"back" in seen)
    assert here.stats()["reconnects"] == 1
    lines = [r.message for r in caplog.records if r.name.startswith("moonpool.bus")]
    assert len(lines) <= 10, lines
    await here.close()
    await there.close()


async def _echoes(bus: NatsBus) -> bool:
    try:
        return await bus.request("t.echo", b"again", 1.0) == b"again"
    except (NoResponder, RequestTimeout):
        return False


async def test_a_connection_that_the_server_closed_for_good_is_made_anew(
    server: NatsServer,
) -> None:
    here, there = await NatsBus.connect(server.url), await NatsBus.connect(server.url)
    seen: list[bytes] = []

    async def note(subject: str, payload: bytes) -> None:
        seen.append(payload)

    await here.subscribe("t.note", note)
    await here.serve("store", "n1", "0.1.0", [Endpoint("echo", "t.echo", echo)])
    # Headers over the limit: nats-py lets them pass, and the server hangs up.
    await here._link.client.publish("t.x", b"", headers={"X": "x" * (1 << 20)})
    await until(lambda: here.stats()["reconnects"] == 1 and here.is_connected)
    await until(lambda: _echoes(there))
    await there.publish("t.note", b"back")
    await until(lambda: b"back" in seen)
    await here.close()
    await there.close()


async def test_the_servers_own_payload_limit_is_kept() -> None:
    with NatsServer(config="max_payload: 65536") as server:
        bus = await NatsBus.connect(server.url)
        assert 60_000 < bus.payload_max_bytes < 65536
        with pytest.raises(PayloadTooLarge):
            await bus.publish("t.x", bytes(65536))
        await bus.serve("store", "n1", "0.1.0", [Endpoint("echo", "t.size", _size)])
        assert await bus.request("t.size", bytes(1_000_000), 5.0) == b"1000000"
        await bus.close()


async def _size(payload: bytes) -> bytes:
    return str(len(payload)).encode()


async def test_a_login_is_used_and_a_wrong_one_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = "authorization: {user: moon, password: pool}"
    with NatsServer(config=config, jetstream=False) as server:
        bus = await NatsBus.connect(server.url, user="moon", password="pool")
        await bus.publish("t.x", b"")
        await bus.close()
        wrong = asyncio.create_task(NatsBus.connect(server.url, user="moon", password="sun"))
        await until(lambda: "Authorization Violation" in caplog.text)
        wrong.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wrong


async def test_without_jetstream_a_stream_is_waited_for_and_a_durable_publish_refused() -> None:
    with NatsServer(jetstream=False) as server:
        bus = await NatsBus.connect(server.url)
        with pytest.raises(NoResponder):
            await bus.publish_durable("mp.audit.t.x", b"", 2.0)
        making = asyncio.create_task(bus.ensure_stream("MP_AUDIT", ["mp.audit.>"], 1 << 20))
        done, _ = await asyncio.wait([making], timeout=0.2)
        assert not done
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await bus.close()


async def test_a_server_that_takes_nothing_more_is_left_and_found_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "SILENCE_S", 0.5)
    monkeypatch.setattr(nats_link, "PING_S", 0.5)
    bus = await NatsBus.connect(server.url)

    async def is_lost() -> bool:
        with contextlib.suppress(BusUnavailable):
            await bus.publish("much.to.say", bytes(256 << 10))
        return not bus.is_connected

    with server.held():
        await until(is_lost, 20.0)
    await until(lambda: bus.is_connected, 20.0)
    await bus.publish("much.to.say", b"again")
    await bus.close()
