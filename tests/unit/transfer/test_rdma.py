"""What of the rdma transport needs no adapter: choosing one, its messages, its patience, and saying
why it cannot run. What needs one runs in tests/rdma."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.messages.segments import Endpoint
from moonpool.transfer import BadTransfer, TransferEngine
from moonpool.transfer.resting import REST_MAX_S, Rest
from moonpool.transfer.transports.endpoint_pool import EndpointPool
from moonpool.transfer.transports.fences import LEFT_MAX
from moonpool.transfer.transports.rdma_choice import Choice, Gid, GidKind, best_gid, parse_choices
from moonpool.transfer.transports.rdma_control import Control, ControlLost
from moonpool.transfer.transports.rdma_grants import Grants
from moonpool.transfer.transports.rdma_patience import Patience
from moonpool.transfer.transports.rdma_wire import (
    MESSAGE_BYTES_MAX,
    Ask,
    Connect,
    Connected,
    End,
    Granted,
    Message,
    QueueEnd,
    Withdrawn,
    pack,
    unpack,
)
from moonpool.transfer.wire import BadFrame

ASK = Ask(region=3, key=b"k" * 16, offset=4096, length=100)
END = End(gid="::ffff:10.0.0.1", lid=0, mtu=5, reads_max=16, queues=[QueueEnd(17, 5)])
MESSAGES: list[Message] = [
    ASK,
    Connect(ASK, "mlx5_0", END),
    Connect(ASK, "mlx5_0", END, b"n" * 16, [bytes([n]) * 16 for n in range(LEFT_MAX)]),
    Granted(ASK, 0, "rw", 1 << 46, [7, 8]),
    Connected(END, Granted(ASK, 1)),
    Withdrawn(3, b""),
]


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("", []),
        ("mlx5_0", [Choice("mlx5_0")]),
        ("mlx5_0:2", [Choice("mlx5_0", 2)]),
        ("a:1:3, b", [Choice("a", 1, 3), Choice("b")]),
    ],
)
def test_adapters_are_named_with_port_and_gid(text: str, choices: list[Choice]) -> None:
    assert parse_choices(text) == choices


@pytest.mark.parametrize("text", [":1", "a:x", "a:1:2:3", "a:-1"])
def test_a_choice_that_says_nothing_clear_is_refused(text: str) -> None:
    with pytest.raises(BadTransfer):
        parse_choices(text)


LINK_LOCAL = Gid(0, GidKind.ROCE_V2, "fe80::1")
V1 = Gid(1, GidKind.ROCE_V1, "::ffff:10.0.0.1")
V4 = Gid(3, GidKind.ROCE_V2, "::ffff:10.0.0.1")
V6 = Gid(2, GidKind.ROCE_V2, "2001:db8::1")
IB = Gid(0, GidKind.INFINIBAND, "fe80::2:c903:0:1")
EMPTY = Gid(4, GidKind.ROCE_V2, "::")


@pytest.mark.parametrize(
    ("gids", "best"),
    [
        ([LINK_LOCAL, V1, V6, V4], V4),
        ([V1, LINK_LOCAL, V6], V6),
        ([V1, LINK_LOCAL], LINK_LOCAL),
        ([V1, IB], IB),
        ([V1, EMPTY], V1),
        ([EMPTY], None),
        ([], None),
    ],
)
def test_roce_v2_with_a_routable_address_is_preferred(gids: list[Gid], best: Gid | None) -> None:
    assert best_gid(gids) == best


def test_a_roce_v2_gid_is_an_ip_address() -> None:
    assert [gid.ip for gid in (V4, V6, V1, IB)] == ["10.0.0.1", "2001:db8::1", "", ""]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_survives_the_wire_in_pieces(message: Message) -> None:
    data = pack(message) + pack(ASK)
    buffer = bytearray()
    seen = []
    for byte in data:
        buffer.append(byte)
        while (got := unpack(buffer)) is not None:
            seen.append(got)
    assert seen == [message, ASK]


def test_a_message_without_end_is_refused_before_it_is_kept() -> None:
    for length in (0, MESSAGE_BYTES_MAX + 1, (1 << 32) - 1):
        with pytest.raises(BadFrame):
            unpack(bytearray(length.to_bytes(4, "little")))


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": b"short"},
        {"offset": -1},
        {"length": 0},
        {"region": 1 << 63},
    ],
)
def test_an_ask_with_numbers_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    fields = {"type": "ask", **msgspec.structs.asdict(ASK), **wrong}
    body = msgspec.msgpack.encode(fields)
    with pytest.raises(BadFrame):
        unpack(bytearray(len(body).to_bytes(4, "little") + body))


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_are_refused_or_are_messages(
    message: Message, data: st.DataObject
) -> None:
    buffer = bytearray(pack(message))
    for place in data.draw(st.lists(st.integers(0, len(buffer) - 1), min_size=1, max_size=4)):
        buffer[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFrame):
        got = unpack(buffer)
        assert got is None or isinstance(got, Message)


def test_looking_grows_while_it_pays_and_shrinks_when_it_does_not() -> None:
    patience = Patience()
    first_s = patience.look_s
    assert patience.look(lambda: True)
    assert patience.look_s > first_s
    for _ in range(10):
        assert not patience.look(lambda: False)
    assert patience.look_s < first_s


def test_a_failing_path_rests_longer_each_time_until_it_works() -> None:
    rest = Rest()
    assert not rest.now(0.0)
    rest.failed(0.0)
    assert rest.now(0.4)
    assert not rest.now(0.6)
    rest.failed(1.0)
    assert rest.now(1.9)
    for _ in range(20):
        rest.failed(10.0)
    assert not rest.now(10.0 + REST_MAX_S)
    rest.worked()
    assert not rest.now(10.0)


def test_keys_are_forgotten_when_withdrawn_or_expired() -> None:
    grants = Grants()
    granted = Granted(ASK, 0, "r", 0, [1, 2])
    grants.remember(granted, 0.0)
    assert grants.find(ASK) is granted
    grants.withdraw(Withdrawn(3, b"x" * 16))
    assert grants.find(ASK) is granted
    grants.withdraw(Withdrawn(3, ASK.key))
    assert grants.find(ASK) is None
    grants.remember(granted, 1.0)
    assert grants.find(ASK) is None


class Linked:
    """Stands for a path with a link."""

    def __init__(self) -> None:
        self.retired = False

    def retire(self) -> None:
        self.retired = True


@pytest.mark.parametrize(("policy", "spared"), [("sieve", 1), ("fifo", 0)])
def test_of_too_many_links_the_least_useful_goes(
    monkeypatch: pytest.MonkeyPatch, policy: str, spared: int
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.endpoint_pool.ENDPOINTS_MAX", 2)
    pool = EndpointPool(policy)
    first, second, third = paths = [Linked() for _ in range(3)]
    pool.opened(first)
    pool.opened(second)
    pool.used(first)
    pool.opened(third)
    assert [path.retired for path in paths] == [not spared, bool(spared), False]
    assert (len(pool), pool.retired) == (2, 1)
    pool.closed(third)
    pool.closed(third)
    assert len(pool) == 1


async def test_without_an_adapter_the_engine_says_why_and_runs_on(tmp_path: Path) -> None:
    engine = await TransferEngine.start(
        "x",
        host_id="here",
        run_dir=tmp_path,
        transports=("rdma", "tcp"),
        rdma_device="no_such_adapter_0",
    )
    try:
        assert engine.unavailable["rdma"]
        assert [e.transport for e in engine.endpoints] == ["tcp"]
        assert engine.stats()["rdma.links_open"] == 0
        region = engine.allocate(10)
        grant = region.grant("r")
        mixed = msgspec.structs.replace(
            grant, endpoints=[Endpoint("rdma", "10.0.0.1:7/mlx5_0"), *grant.endpoints]
        )
        assert [path.name for path in engine.open(mixed).paths] == ["tcp"]
    finally:
        await engine.close()


async def test_a_choice_of_adapter_without_meaning_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadTransfer):
        await TransferEngine.start(
            "y", host_id="here", run_dir=tmp_path, transports=("rdma", "tcp"), rdma_device="a:b:c"
        )


@contextlib.contextmanager
def controls() -> Iterator[tuple[Control, Control]]:
    """Both ends of a handshake connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = Control(socket.create_connection(listening.getsockname()))
        far = Control(listening.accept()[0])
    try:
        yield near, far
    finally:
        near.close()
        far.close()


def test_goodbye_is_said_when_the_other_side_has_closed() -> None:
    with controls() as (near, far):
        assert not near.goodbye(0.01)
        far.send(Withdrawn(3, b""))
        far.shut()  # it will read no more; that alone is no goodbye
        assert not near.goodbye(0.01)
        far.close()
        assert near.goodbye(10.0)


def test_who_ended_a_connection_itself_hears_no_goodbye_on_it() -> None:
    with controls() as (near, _):
        near.shut()
        assert not near.goodbye(10.0)


def test_a_reader_wakes_when_its_side_is_shut() -> None:
    with controls() as (_, far):
        threading.Timer(0.01, far.shut).start()
        with pytest.raises(ControlLost):
            far.receive(10.0)
