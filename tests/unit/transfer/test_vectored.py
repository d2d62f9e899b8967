"""Vectored calls move every byte, however the kernel cuts them."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.transfer import vectored
from moonpool.transfer.vectored import StreamBroken, Vector, receive_into


@contextlib.contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """With small buffers, so that calls are cut."""
    one, two = socket.socketpair()
    with one, two:
        for sock in (one, two):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield one, two


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_odd_ranges_arrive_in_other_ranges(seed: int) -> None:
    random = np.random.default_rng(seed)
    source = random.integers(0, 256, 3_000_000, dtype=np.uint8)
    target = np.zeros_like(source)

    def ranges(base: int) -> Vector:
        cuts = np.unique(random.integers(1, len(source), 2500))
        starts = np.concatenate(([0], cuts))
        ends = np.concatenate((cuts, [len(source)]))
        vector = Vector(3000)
        vector.add_all(starts + base, ends - starts)
        return vector

    with socket_pair() as (one, two):
        outgoing, incoming = ranges(source.ctypes.data), ranges(target.ctypes.data)
        sender = threading.Thread(target=outgoing.send, args=(one.fileno(),))
        sender.start()
        incoming.receive(two.fileno())
        sender.join()
    assert np.array_equal(source, target)


def single(buffer: np.ndarray) -> Vector:
    vector = Vector()
    vector.add(buffer.ctypes.data, buffer.nbytes)
    return vector


def test_a_closed_stream_is_broken_on_both_ends() -> None:
    buffer = np.zeros(10, np.uint8)
    with socket_pair() as (one, two):
        one.send(b"half")
        one.shutdown(socket.SHUT_RDWR)
        with pytest.raises(StreamBroken):
            single(buffer).receive(two.fileno())
        assert bytes(buffer[:4]) == b"half"
        with pytest.raises(StreamBroken):
            single(buffer).send(one.fileno())


def test_a_small_buffer_is_filled_from_parts() -> None:
    buffer = bytearray(10)
    with socket_pair() as (one, two):
        sender = threading.Thread(target=lambda: [one.send(b"x") for _ in range(10)])
        sender.start()
        receive_into(two, memoryview(buffer))
        sender.join()
        assert buffer == b"x" * 10
        one.close()
        with pytest.raises(StreamBroken):
            receive_into(two, memoryview(buffer))


def test_a_peer_without_progress_is_given_up() -> None:
    buffer = np.zeros(10, np.uint8)
    with socket_pair() as (_one, two):
        vectored.set_timeouts(two, 0.05, 0.05)
        with pytest.raises(StreamBroken):
            single(buffer).receive(two.fileno())
        with pytest.raises(StreamBroken):
            receive_into(two, memoryview(buffer))


@pytest.mark.parametrize(("ours", "is_far"), [("127.0.0.1", False), ("127.0.0.2", True)])
def test_a_stream_to_another_host_notices_that_it_vanished(ours: str, is_far: bool) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), 5.0, (ours, 0)) as sock,
    ):
        vectored.tune(sock)
        user_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        idle_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is is_far
        assert (user_ms == vectored.VANISHED_S * 1000) is is_far
        assert (idle_s < vectored.VANISHED_S) is is_far
