"""The limit of shared memory: one memcpy between two memory files, mapped by one process."""

import ctypes

from bench.transfer import child
from bench.transfer.child import Call
from bench.transfer.shapes import Shape


def main() -> None:
    child.begin()
    here, there = child.shared_buffer(), child.shared_buffer()
    there[:] = child.pattern(1)
    local, remote = int(here.ctypes.data), int(there.ctypes.data)
    memmove = ctypes.memmove

    def move(op: str, shape: Shape) -> Call:
        target, source = (local, remote) if op == "read" else (remote, local)
        ranges = [[(target + o, source + o) for o in shape.offsets(p)] for p in range(shape.places)]
        size = shape.size

        def call(place: int) -> None:
            for to, origin in ranges[place]:
                memmove(to, origin, size)

        return call

    child.serve(move, here)


if __name__ == "__main__":
    main()
