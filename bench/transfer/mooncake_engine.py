"""Mooncake's TransferEngine over tcp. Runs in the rival's own environment."""

import sys
import time
from typing import Any

from bench.transfer import child
from bench.transfer.child import Bytes, Call
from bench.transfer.shapes import BUFFER_BYTES, Shape


def _engine(buffer: Bytes) -> Any:
    from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

    engine = TransferEngine()
    _expect_zero(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
    _expect_zero(engine.register_memory(int(buffer.ctypes.data), BUFFER_BYTES))
    return engine


def _expect_zero(code: int) -> None:
    if code != 0:
        raise RuntimeError(f"the transfer engine answered {code}")


def server() -> None:
    buffer = child.private_buffer()
    buffer[:] = child.pattern(1)
    engine = _engine(buffer)
    child.say({"port": engine.get_rpc_port(), "address": int(buffer.ctypes.data)})
    while True:
        time.sleep(3600)


def client(told: dict[str, Any]) -> tuple[Bytes, Any]:
    here = child.private_buffer()
    engine = _engine(here)
    target, local, remote = f"127.0.0.1:{told['port']}", int(here.ctypes.data), told["address"]

    def move(op: str, shape: Shape) -> Call:
        size, at = shape.size, [shape.offsets(place) for place in range(shape.places)]
        if shape.count == 1:
            one = engine.transfer_sync_read if op == "read" else engine.transfer_sync_write

            def single(place: int) -> None:
                offset = at[place][0]
                _expect_zero(one(target, local + offset, remote + offset, size))

            return single
        many = engine.batch_transfer_sync_read if op == "read" else engine.batch_transfer_sync_write
        sizes = [size] * shape.count
        sides = [([local + o for o in offsets], [remote + o for o in offsets]) for offsets in at]

        def batch(place: int) -> None:
            mine, theirs = sides[place]
            _expect_zero(many(target, mine, theirs, sizes))

        return batch

    return here, move


def main() -> None:
    child.begin()
    if sys.argv[1] == "server":
        server()
    here, move = client(child.hear())
    child.serve(move, here)


if __name__ == "__main__":
    main()
