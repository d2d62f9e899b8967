"""Vectored calls move every byte, however the kernel cuts them."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.transfer import vectored
from moonpool.transfer.vectored import StreamBroken, receive_all, send_all, vector


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

    def ranges(base: int) -> np.ndarray:
        cuts = np.unique(random.integers(1, len(source), 2500))
        starts = np.concatenate(([0], cuts))
        ends = np.concatenate((cuts, [len(source)]))
        return vector(starts + base, ends - starts)

    with socket_pair() as (one, two):
        outgoing, incoming = ranges(source.ctypes.data), ranges(target.ctypes.data)
        sender = threading.Thread(target=send_all, args=(one.fileno(), outgoing))
        sender.start()
        receive_all(two.fileno(), incoming)
        sender.join()
    assert np.array_equal(source, target)


def test_a_closed_stream_is_broken_on_both_ends() -> None:
    buffer = np.zeros(10, np.uint8)
    with socket_pair() as (one, two):
        one.send(b"half")
        one.shutdown(socket.SHUT_RDWR)
        with pytest.raises(StreamBroken) as raised:
            receive_all(two.fileno(), vector([buffer.ctypes.data], [10]))
        assert not raised.value.idle
        assert bytes(buffer[:4]) == b"half"
        with pytest.raises(StreamBroken):
            send_all(one.fileno(), vector([buffer.ctypes.data], [10]))


def test_silence_is_told_from_an_end() -> None:
    buffer = np.zeros(10, np.uint8)
    with socket_pair() as (_one, two):
        vectored.set_timeouts(two, 0.05, 0.05)
        vec = vector([buffer.ctypes.data], [10])
        with pytest.raises(StreamBroken) as raised:
            receive_all(two.fileno(), vec)
        assert raised.value.idle
        assert int(vec[0, 1]) == 10  # nothing was taken
