"""deploy/nats/nats.conf on a real server: each user can do its work, and nothing else."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from moonpool.bus import Endpoint, NatsBus, RequestTimeout
from moonpool.messages.subjects import Subjects
from tests.support.nats_server import NatsServer
from tests.support.until import until

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "nats" / "nats.conf"
USERS = (
    "gateway", "conductor", "prefill", "decode", "colocated", "store", "exporter", "observer",
    "operator", "foreign",
)  # fmt: skip
SUBJECTS = Subjects()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """With the config as it is, but for the addresses of the machine it is made for."""
    passwords = "\n".join(f'{user.upper()}_PASSWORD: "pw-{user}"' for user in USERS)
    data = tmp_path_factory.mktemp("jetstream")
    config = CONFIG.read_text()
    for line, there in (
        ("listen: 0.0.0.0:4222\n", ""),
        ("http: 127.0.0.1:8222\n", ""),
        ("include ./passwords/passwords.conf", passwords),
        ("/data", str(data)),
    ):
        assert line in config
        config = config.replace(line, there)
    with NatsServer(jetstream=False, config=config) as server:
        yield server


async def connect(server: NatsServer, user: str) -> NatsBus:
    return await NatsBus.connect(server.url, user=user, password=f"pw-{user}")


async def echo(payload: bytes) -> bytes:
    return payload


async def ignore(subject: str, payload: bytes) -> None:
    return


async def refused(bus: NatsBus, user: str, subject: str, *, listening: bool = False) -> bool:
    """Whether the server refuses to take `subject` from this user, or to give it."""
    before = bus.stats()["errors"]
    if listening:
        subscription = await bus.subscribe(subject, ignore)
    else:
        await bus.publish(subject, b"")
    probe = await bus.subscribe(f"_INBOX_{user}.probe", ignore)  # one round trip
    await probe.close()
    if listening:
        await subscription.close()
    return bus.stats()["errors"] > before


SPEAKS = {
    "gateway": [
        SUBJECTS.plan,
        SUBJECTS.prefill("prefill-1", "submit"),
        SUBJECTS.decode("decode-1", "reserve"),
        SUBJECTS.audit("public", "request_end"),
        SUBJECTS.metrics("gateway", "g"),
        SUBJECTS.where,
        SUBJECTS.roll,
    ],
    "conductor": [
        SUBJECTS.kv_snapshot("store-1"),
        SUBJECTS.metrics("conductor", "c"),
        SUBJECTS.store("n", "copy"),
        SUBJECTS.store("n", "spare"),
    ],
    "prefill": [
        SUBJECTS.hello,
        SUBJECTS.tokens("r"),
        SUBJECTS.decode("d", "start"),
        SUBJECTS.store("s", "put_start"),
        SUBJECTS.load("p"),
        SUBJECTS.kv_events("p"),
    ],
    "decode": [SUBJECTS.hello, SUBJECTS.tokens("r"), SUBJECTS.store("s", "put_end")],
    "colocated": [SUBJECTS.hello, SUBJECTS.tokens("r"), SUBJECTS.store("s", "get_start")],
    "store": [SUBJECTS.hello, SUBJECTS.kv_events("s"), SUBJECTS.load("s"), SUBJECTS.roll],
    "exporter": [SUBJECTS.metrics("exporter", "e")],
    "observer": [],
    "operator": [
        "$SRV.PING",
        SUBJECTS.conductor_status,
        SUBJECTS.where,
        SUBJECTS.advise,
        SUBJECTS.role("c"),
        SUBJECTS.store("s", "drain"),
        SUBJECTS.roll,
    ],
    "foreign": [SUBJECTS.hello, SUBJECTS.heartbeat, SUBJECTS.kv_events("f")],
}
MUTE = {
    "gateway": [SUBJECTS.kv_events("s"), SUBJECTS.store("s", "remove"), SUBJECTS.tokens("r")],
    "conductor": [
        SUBJECTS.store("n", "remove"),
        SUBJECTS.tokens("r"),
        SUBJECTS.prefill("p", "submit"),
        SUBJECTS.plan,
    ],
    "prefill": [SUBJECTS.plan, SUBJECTS.audit("a", "b"), SUBJECTS.store("s", "drain")],
    "decode": [SUBJECTS.prefill("p", "submit"), SUBJECTS.audit("a", "b")],
    "colocated": [SUBJECTS.metrics("gateway", "g"), SUBJECTS.store("s", "remove")],
    "store": [SUBJECTS.tokens("r"), SUBJECTS.decode("d", "start"), SUBJECTS.store("s", "drain")],
    "exporter": [SUBJECTS.metrics("gateway", "g"), SUBJECTS.heartbeat, SUBJECTS.plan],
    "observer": [SUBJECTS.audit("a", "b"), SUBJECTS.plan, SUBJECTS.heartbeat],
    "operator": [SUBJECTS.tokens("r"), SUBJECTS.heartbeat, SUBJECTS.audit("a", "b")],
    "foreign": [SUBJECTS.plan, SUBJECTS.load("f"), SUBJECTS.store("s", "put_start")],
}
DEAF = {
    "gateway": ["mp.>", SUBJECTS.plan, "_INBOX_prefill.>", "_PARTS_prefill.>", SUBJECTS.load()],
    "conductor": ["mp.>", SUBJECTS.tokens("*"), "_INBOX.>", "mp.audit.>"],
    "prefill": ["mp.>", SUBJECTS.tokens("*"), SUBJECTS.decode("*", "reserve"), "_INBOX.>"],
    "decode": ["mp.>", SUBJECTS.tokens("*"), SUBJECTS.prefill("*", "submit"), "_PARTS_prefill.>"],
    "colocated": ["mp.>", SUBJECTS.tokens("*"), "_INBOX_gateway.>", "mp.audit.>"],
    "store": ["mp.>", SUBJECTS.tokens("*"), SUBJECTS.prefill("*", "submit"), "_INBOX.>"],
    "exporter": ["mp.>", "mp.audit.>", "_INBOX_gateway.>"],
    "observer": ["mp.>", SUBJECTS.tokens("*"), SUBJECTS.prefill("*", "submit"), "_INBOX_gateway.>"],
    "operator": [">", "_INBOX_gateway.>", "_PARTS_store.>"],
    "foreign": ["mp.>", SUBJECTS.kv_events(), SUBJECTS.tokens("*"), "_INBOX_gateway.>"],
}


@pytest.mark.parametrize("user", [user for user in USERS if user not in ("exporter", "observer")])
async def test_whoever_beats_hears_the_roll_called(server: NatsServer, user: str) -> None:
    bus = await connect(server, user)
    assert not await refused(bus, user, SUBJECTS.roll, listening=True)
    await bus.close()


@pytest.mark.parametrize("user", USERS)
async def test_a_user_says_what_its_work_needs_and_nothing_else(
    server: NatsServer, user: str
) -> None:
    bus = await connect(server, user)
    assert [s for s in SPEAKS[user] if await refused(bus, user, s)] == []
    assert [s for s in MUTE[user] if not await refused(bus, user, s)] == []
    assert [s for s in DEAF[user] if not await refused(bus, user, s, listening=True)] == []
    await bus.close()


async def test_a_service_answers_on_the_askers_own_inbox_short_and_in_parts(
    server: NatsServer,
) -> None:
    prefill, gateway = await connect(server, "prefill"), await connect(server, "gateway")
    subject = SUBJECTS.prefill("prefill-1", "submit")
    await prefill.serve("prefill", "prefill-1", "0", [Endpoint("prefill-submit", subject, echo)])
    assert await gateway.request(subject, b"hello", 5.0) == b"hello"
    long = b"x" * (gateway.payload_max_bytes - 100)
    assert await gateway.request(subject, long, 5.0) == long
    assert gateway.stats()["errors"] == prefill.stats()["errors"] == 0
    await gateway.close()
    await prefill.close()


async def test_an_operator_finds_services_and_an_observer_can_not_ask_them(
    server: NatsServer,
) -> None:
    store = await connect(server, "store")
    subject = SUBJECTS.store("store-a", "stats")
    await store.serve("store", "store-a", "0", [Endpoint("stats", subject, echo)])
    operator = await connect(server, "operator")
    assert (
        json.loads(await operator.request("$SRV.INFO.store.store-a", b"", 5.0))["id"] == "store-a"
    )
    observer = await connect(server, "observer")
    with pytest.raises(RequestTimeout):
        await observer.request(subject, b"", 0.3)
    for bus in (observer, operator, store):
        await bus.close()


async def test_the_gateway_makes_the_audit_stream_and_an_observer_reads_it(
    server: NatsServer,
) -> None:
    gateway = await connect(server, "gateway")
    await gateway.ensure_stream("MP_AUDIT", ["mp.audit.>"], 1 << 20)
    await gateway.ensure_stream("MP_AUDIT", ["mp.audit.>"], 1 << 21)
    await gateway.publish_durable("mp.audit.public.request_end", b"{}", 5.0)
    client = await nats.connect(
        server.url, user="observer", password="pw-observer", inbox_prefix="_INBOX_observer"
    )
    got: list[bytes] = []

    async def take(message: Msg) -> None:
        got.append(message.data)

    await client.jetstream().subscribe("mp.audit.>", stream="MP_AUDIT", cb=take)
    await until(lambda: got == [b"{}"])
    with pytest.raises(nats.errors.TimeoutError):
        await client.jetstream(timeout=0.3).add_stream(
            StreamConfig(name="MINE", subjects=["mp.tokens.>"])
        )
    await client.close()
    await gateway.close()


async def test_nobody_comes_in_without_a_password(server: NatsServer) -> None:
    for user, password in (("", ""), ("gateway", "pw-store"), ("root", "pw-gateway")):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await reader.readline()).startswith(b"INFO")
        login = json.dumps({"verbose": False, "user": user, "pass": password})
        writer.write(f"CONNECT {login}\r\nPING\r\n".encode())
        assert await reader.readline() == b"-ERR 'Authorization Violation'\r\n"
        writer.close()
        await writer.wait_closed()


async def test_a_store_node_follows_quotas_that_an_operator_sets_and_keeps_pins(
    server: NatsServer,
) -> None:
    store, operator = await connect(server, "store"), await connect(server, "operator")
    heard: list[str] = []
    watch = await store.bucket("mp_quotas").watch(heard.append)
    assert await store.bucket("mp_quotas").entries() == {}
    await operator.bucket("mp_quotas").put("acme", b"{}")
    await until(lambda: heard == ["acme"])
    assert await store.bucket("mp_quotas").get("acme") == b"{}"
    assert await store.bucket("mp_quotas").entries() == {"acme": b"{}"}
    await store.bucket("mp_pins").put("acme.00", b"1")
    await store.bucket("mp_pins").delete("acme.00")
    assert await store.bucket("mp_pins").entries() == {}
    assert store.stats()["errors"] == operator.stats()["errors"] == 0
    assert await refused(store, "store", "$KV.mp_quotas.acme")
    await watch.close()
    await store.close()
    await operator.close()
