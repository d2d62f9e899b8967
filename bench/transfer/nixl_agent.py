"""NIXL over UCX, held to tcp or to its shared-memory paths. Runs in the rival's own environment.

Descriptors and transfer handles are made before the clock starts, as its users do.
"""

import base64
import os
import sys
import time
from typing import Any

from bench.transfer import child
from bench.transfer.child import Bytes, Call
from bench.transfer.shapes import BUFFER_BYTES, Shape

WAYS = {"tcp": ("tcp", "lo"), "shm": ("shm,cma,self,tcp", "all")}  # UCX_TLS, UCX_NET_DEVICES
HANDLES_MAX = 64  # places beyond share them: a handle is a thing of some size


def _agent(name: str, way: str, buffer: Bytes) -> Any:
    os.environ["UCX_TLS"], os.environ["UCX_NET_DEVICES"] = WAYS[way]
    from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

    owner = name == "server"  # somebody must make progress there; the client does so by asking
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"], enable_prog_thread=owner))
    agent.register_memory([(int(buffer.ctypes.data), BUFFER_BYTES, 0, "")], "DRAM")
    return agent


def server(way: str) -> None:
    buffer = child.private_buffer()
    buffer[:] = child.pattern(1)
    agent = _agent("server", way, buffer)
    card = base64.b64encode(agent.get_agent_metadata()).decode()
    child.say({"card": card, "address": int(buffer.ctypes.data)})
    while True:
        time.sleep(3600)


def client(way: str, told: dict[str, Any]) -> tuple[Bytes, Any]:
    here = child.private_buffer()
    agent = _agent("client", way, here)
    peer = agent.add_remote_agent(base64.b64decode(told["card"]))
    local, remote = int(here.ctypes.data), told["address"]

    def described(base: int, offsets: list[int], size: int) -> Any:
        return agent.get_xfer_descs([(base + o, size, 0) for o in offsets], "DRAM")

    def move(op: str, shape: Shape) -> Call:
        handles = []
        count = min(shape.places, HANDLES_MAX)
        for number in range(count):
            offsets = shape.offsets(number * shape.places // count)
            mine, theirs = (described(base, offsets, shape.size) for base in (local, remote))
            handles.append(agent.initialize_xfer(op.upper(), mine, theirs, peer))

        def call(place: int) -> None:
            handle = handles[place % count]
            state = agent.transfer(handle)
            while state != "DONE":
                if state == "ERR":
                    raise RuntimeError("the transfer failed")
                state = agent.check_xfer_state(handle)

        return call

    return here, move


def main() -> None:
    child.begin()
    way, role = sys.argv[1:3]
    if role == "server":
        server(way)
    here, move = client(way, child.hear())
    child.serve(move, here)


if __name__ == "__main__":
    main()
