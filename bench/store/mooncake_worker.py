"""Mooncake Store, driven from outside. Runs in the rival's own environment and imports nothing of
ours: one JSON command per line on stdin, one JSON answer per line on the last open stdout.

    hold   HOST:PORT .. BYTES   a segment for others, until stdin ends
    client HOST:PORT .. BYTES   a client; with BYTES > 0 it holds its own segment, for local gets
"""

import ctypes
import importlib
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

BUFFER_BYTES = 64 << 20
LOCAL_BUFFER_BYTES = 128 << 20


def setup(name: str, metadata: str, master: str, segment_bytes: int) -> Any:
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    code = store.setup(name, metadata, segment_bytes, LOCAL_BUFFER_BYTES, "tcp", "", master)
    if code != 0:
        raise SystemExit(f"setup of {name} says {code}")
    return store


class Client:
    """Times single calls; every object is its own key."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.memory = mmap.mmap(-1, BUFFER_BYTES)
        self.memory[:] = os.urandom(1 << 20) * (BUFFER_BYTES >> 20)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        code = store.register_buffer(self.address, BUFFER_BYTES)
        if code != 0:
            raise SystemExit(f"register_buffer says {code}")

    def places(self, size: int, count: int) -> list[int]:
        room = BUFFER_BYTES // size
        return [self.address + number % room * size for number in range(count)]

    def put(self, prefix: str, size: int, count: int) -> list[float]:
        def one(number: int, place: int) -> bool:
            return bool(self.store.put_from(f"{prefix}{number}", place, size) == 0)

        return self.timed(one, self.places(size, count))

    def get(self, prefix: str, size: int, count: int) -> list[float]:
        def one(number: int, place: int) -> bool:
            return bool(self.store.get_into(f"{prefix}{number}", place, size) == size)

        return self.timed(one, self.places(size, count))

    def batch_get(self, prefix: str, size: int, count: int, batch: int) -> list[float]:
        places = self.places(size, batch)

        def one(number: int, _: int) -> bool:
            names = [f"{prefix}{key}" for key in range(number * batch, (number + 1) * batch)]
            got = self.store.batch_get_into(names, places, [size] * batch)
            return all(each == size for each in got)

        return self.timed(one, range(count))

    def exists(self, prefix: str, count: int) -> list[float]:
        def one(number: int, _: int) -> bool:
            return bool(self.store.is_exist(f"{prefix}{number}") == 1)

        return self.timed(one, range(count))

    def clear(self) -> list[float]:
        self.store.remove_all(True)
        return []

    @staticmethod
    def timed(do: Callable[[int, int], bool], places: Iterable[int]) -> list[float]:
        out = []
        for number, place in enumerate(places):
            began = time.perf_counter()
            good = do(number, place)
            out.append(time.perf_counter() - began)
            if not good:
                raise SystemExit(f"operation {number} failed")
        return out


def main() -> None:
    kind, name, metadata, master, segment_bytes = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no answer
    store = setup(name, metadata, master, int(segment_bytes))
    client = Client(store) if kind == "client" else None
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        verb, *given = json.loads(line)
        print(json.dumps(getattr(client, verb)(*given)), file=answers, flush=True)
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
