"""One pair of plain blocking sockets: a question of 24 bytes, then the bytes, one way or the other.

Buffers of 1 MiB (the kernel doubles them): larger ones are slower here, since what waits in
them leaves the caches. A batch is its ranges one after the other, without waiting in between.
"""

import os
import socket
import struct
import sys
from typing import Any

from bench.transfer import child
from bench.transfer.child import Bytes, Call
from bench.transfer.shapes import Shape

BUFFER_BYTES = 1 << 20
_QUESTION = struct.Struct("<QQQ")  # 0 read, 1 write; offset; size
_DONE = b"k"


def _tuned(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return sock


def _fill(sock: socket.socket, view: memoryview) -> bool:
    got = 0
    while got < len(view):
        part = sock.recv_into(view[got:])
        if not part:
            return False
        got += part
    return True


def server() -> None:
    buffer = child.private_buffer()
    buffer[:] = child.pattern(1)
    view = buffer.data
    listening = socket.create_server(("127.0.0.1", 0))
    child.say({"port": listening.getsockname()[1]})
    sock = _tuned(listening.accept()[0])
    question = memoryview(bytearray(_QUESTION.size))
    while _fill(sock, question):
        writes, offset, size = _QUESTION.unpack(question)
        if writes:
            _fill(sock, view[offset : offset + size])
            sock.sendall(_DONE)
        else:
            sock.sendall(view[offset : offset + size])
    os._exit(0)


def client(told: dict[str, Any]) -> tuple[Bytes, Any]:
    here = child.private_buffer()
    view = here.data
    sock = _tuned(socket.create_connection(("127.0.0.1", told["port"])))

    def move(op: str, shape: Shape) -> Call:
        ranges = [
            [(_QUESTION.pack(op == "write", o, shape.size), view[o : o + shape.size]) for o in at]
            for at in map(shape.offsets, range(shape.places))
        ]
        done = memoryview(bytearray(shape.count))

        def read(place: int) -> None:
            for question, _ in ranges[place]:
                sock.sendall(question)
            for _, target in ranges[place]:
                _fill(sock, target)

        def write(place: int) -> None:
            for question, source in ranges[place]:
                sock.sendall(question)
                sock.sendall(source)
            _fill(sock, done)

        return read if op == "read" else write

    return here, move


def main() -> None:
    child.begin()
    if sys.argv[1] == "server":
        server()
    here, move = client(child.hear())
    child.serve(move, here)


if __name__ == "__main__":
    main()
