"""Taking in what is large: every byte, whether the receiver stays awake or sleeps."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from moonpool.transfer.lookout import HELD_UP_S, Lookout
from moonpool.transfer.transports.tcp_awake import Flows, Intake, is_near
from moonpool.transfer.vectored import StreamBroken, Vector
from tests.support.until import until

BYTES = 3 << 20


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        with one, listening.accept()[0] as two:
            yield one, two


class Received:
    """One vector over two ranges, and how it is filled."""

    def __init__(
        self, size_bytes: int = BYTES, *, enabled: bool = True, flows: Flows | None = None
    ) -> None:
        self.target = np.zeros(size_bytes, np.uint8)
        self.lookout = Lookout(enabled, running=lambda: 1, cpus=2)
        self.vector = Vector()
        address = int(self.target.ctypes.data)
        self.vector.add(address, 1000)
        self.vector.add(address + 1000, size_bytes - 1000)
        self.intake = Intake(self.vector, self.lookout, flows)

    @property
    def looks_seen(self) -> float:
        return self.lookout.stats()["looks_seen"]


def sent_in(sock: socket.socket, pieces: int) -> tuple[threading.Thread, np.ndarray]:
    source = np.random.default_rng(pieces).integers(0, 256, BYTES, dtype=np.uint8)

    def send() -> None:
        for piece in np.array_split(source, pieces):
            sock.sendall(piece.data)

    thread = threading.Thread(target=send)
    thread.start()
    return thread, source


@pytest.mark.parametrize("pieces", [1, 50, 3000])
@pytest.mark.parametrize("enabled", [True, False], ids=["awake", "asleep"])
def test_every_byte_is_taken_in(enabled: bool, pieces: int) -> None:
    received = Received(enabled=enabled)
    with connected() as (one, two):
        sender, source = sent_in(one, pieces)
        received.intake.fill(two, begun=True)
        sender.join()
    assert np.array_equal(received.target, source)
    assert enabled or not received.looks_seen


def test_what_is_there_already_takes_one_look() -> None:
    received = Received(2000)
    with connected() as (one, two):
        one.sendall(b"ab" * 1000)
        two.recv(2000, socket.MSG_PEEK | socket.MSG_WAITALL)
        received.intake.fill(two, begun=True)
    assert received.target.tobytes() == b"ab" * 1000
    assert received.looks_seen == 1


async def test_a_receiver_whose_sender_pauses_gets_the_rest_all_the_same() -> None:
    received = Received()
    source = np.random.default_rng(1).integers(0, 256, BYTES, dtype=np.uint8)
    with connected() as (one, two):
        filling = asyncio.create_task(asyncio.to_thread(received.intake.fill, two, begun=False))
        one.sendall(source[:5000].data)
        await until(lambda: received.vector.moved_bytes == 5000)
        await asyncio.to_thread(one.sendall, source[5000:].data)
        await filling
    assert np.array_equal(received.target, source)


def test_a_stream_that_ends_in_the_middle_is_broken() -> None:
    received = Received()
    with connected() as (one, two):
        one.sendall(b"x" * 5000)
        one.close()
        with pytest.raises(StreamBroken):
            received.intake.fill(two, begun=True)


def test_who_is_held_up_between_pieces_takes_the_rest_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a thread that computes and lets go of the GIL late."""
    received = Received()
    slow = clock_of_slow_calls()
    monkeypatch.setattr(time, "perf_counter", slow)
    with connected() as (one, two):
        sender, source = sent_in(one, 50)
        received.intake.fill(two, begun=True)
        sender.join()
    assert np.array_equal(received.target, source)
    assert received.looks_seen <= 1  # the first piece may have been the whole


def clock_of_slow_calls() -> Callable[[], float]:
    now_s = 0.0

    def now() -> float:
        nonlocal now_s
        now_s += 2 * HELD_UP_S
        return now_s

    return now


def test_who_is_one_of_too_many_sleeps() -> None:
    flows = Flows(1)
    flows.begin("another")
    received = Received(flows=flows)
    with connected() as (one, two):
        sender, source = sent_in(one, 50)
        received.intake.fill(two, begun=False)
        sender.join()
    assert np.array_equal(received.target, source)
    assert received.lookout.stats()["looks"] == 0
    assert flows.may_stay  # for the other one, when this one has ended


def test_only_a_plain_stream_of_this_host_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as (one, two):
        assert is_near(one)
        assert is_near(two)
        monkeypatch.setattr(socket.socket, "getpeername", lambda _: ("192.0.2.1", 9))
        assert not is_near(one)
