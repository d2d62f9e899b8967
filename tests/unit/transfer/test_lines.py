"""Frames of a line arrive whole, or end it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from moonpool.transfer.line_frames import BODY_MAX_BYTES, HEAD_BYTES, pack_line
from moonpool.transfer.lines import Line
from moonpool.transfer.lookout import Lookout
from moonpool.transfer.vectored import StreamBroken
from moonpool.transfer.wakeful import Wakeful
from tests.support.until import until


@contextlib.contextmanager
def a_line() -> Iterator[tuple[Line, socket.socket]]:
    """And the socket of the other side. Inside a loop."""
    one, two = socket.socketpair()
    line = Line(one, asyncio.get_running_loop())
    line.watch()
    line.expecting = True
    with two:
        try:
            yield line, two
        finally:
            line.close()


def frame(kind: int, number: int, body: bytes, payload_bytes: int = 0) -> bytes:
    return b"".join(pack_line(kind, number, body, payload_bytes))


@pytest.mark.parametrize("body_bytes", [0, 1, 4096, 5000, 8192, 300_000])
async def test_a_frame_arrives_whatever_its_size_and_however_it_is_cut(body_bytes: int) -> None:
    body = bytes(i % 251 for i in range(body_bytes))
    whole = frame(3, 7, body, 5) + b"bytes" + frame(4, 8, b"next")
    with a_line() as (line, other):

        async def send() -> None:
            other.setblocking(False)
            loop = asyncio.get_running_loop()
            for at in range(0, len(whole), max(1, len(whole) // 7)):
                await loop.sock_sendall(other, whole[at : at + max(1, len(whole) // 7)])
                await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        first = await line.next_frame(5.0)
        assert (first.kind, first.number, bytes(first.body)) == (3, 7, body)
        payload = memoryview(bytearray(first.payload_bytes))
        await line.take(payload, 5.0)
        assert bytes(payload) == b"bytes"
        second = await line.next_frame(5.0)
        assert (second.kind, second.number, bytes(second.body)) == (4, 8, b"next")
        await sending


@pytest.mark.parametrize("at", [0, 8, 12, 14, 20, HEAD_BYTES, HEAD_BYTES + 3])
async def test_a_flipped_bit_ends_the_line(at: int) -> None:
    damaged = bytearray(frame(1, 1, b"a question"))
    damaged[at] ^= 4
    with a_line() as (line, other):
        other.sendall(damaged + bytes(64))
        with pytest.raises((StreamBroken, TimeoutError)):
            await line.next_frame(0.2)


async def test_noise_and_immense_frames_end_it_at_once() -> None:
    for noise in (b"\xff" * 64, frame(1, 1, bytes(BODY_MAX_BYTES + 1))[:64]):
        with a_line() as (line, other):
            other.sendall(noise)
            with pytest.raises(StreamBroken):
                await line.next_frame(1.0)


async def test_silence_is_a_time_out_and_the_end_of_the_other_side_is_told() -> None:
    with a_line() as (line, other):
        with pytest.raises(TimeoutError):
            await line.next_frame(0.02)
        waiting = asyncio.create_task(line.next_frame(5.0))
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(StreamBroken):
            await waiting


async def test_who_waits_hears_of_a_close() -> None:
    with a_line() as (line, _):
        waiting = asyncio.create_task(line.take(memoryview(bytearray(9)), 5.0))
        await asyncio.sleep(0)
        line.close()
        with pytest.raises(StreamBroken):
            await waiting
        with pytest.raises(StreamBroken):
            await line.next_frame(5.0)


async def test_much_is_sent_as_fast_as_it_is_taken() -> None:
    with a_line() as (line, other):
        views: list[bytes | memoryview] = [b"head", memoryview(bytes(3_000_000)), b"end"]
        taken = asyncio.create_task(asyncio.to_thread(take_all, other, 3_000_007))
        await line.send(views, 5.0)
        assert await taken == b"head" + bytes(3_000_000) + b"end"


async def test_a_side_that_is_spoken_to_unasked_hangs_up() -> None:
    with a_line() as (line, other):
        line.expecting = False
        other.sendall(b"?")
        await until(lambda: line.closed)


async def test_a_line_that_a_thread_uses_is_cut_and_closed_by_its_return() -> None:
    with a_line() as (line, _):
        line.lend()
        room = memoryview(bytearray(10))
        is_there = threading.Event()

        def take() -> None:
            is_there.set()
            line.take_waiting(room)

        taking = asyncio.create_task(asyncio.to_thread(take))
        await until(is_there.is_set)
        line.close()
        with pytest.raises(StreamBroken):
            await taking
        assert line.sock.fileno() >= 0
        line.give_back()
        assert line.sock.fileno() == -1


def take_all(sock: socket.socket, size_bytes: int) -> bytes:
    out = bytearray()
    while len(out) < size_bytes:
        out += sock.recv(1 << 16)
    return bytes(out)


async def test_an_owner_stays_awake_for_questions_that_follow_at_once() -> None:
    lookout, loop = Lookout(cpus=2, running=lambda: 1), asyncio.get_running_loop()
    one, two = socket.socketpair()
    line = Line(one, loop, lookout, Wakeful(loop, lookout))
    answers: asyncio.Queue[int] = asyncio.Queue()

    def hear() -> None:
        while (question := line.try_frame()) is not None:
            line.asked()
            answers.put_nowait(question.number)
            line.answered()

    line.watch(hear)
    with two:
        for number in range(200):
            two.sendall(frame(1, number, b"?"))
            assert await asyncio.wait_for(answers.get(), 5.0) == number
        assert lookout.stats()["looks_seen"] > 0
        line.close()
