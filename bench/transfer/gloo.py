"""torch.distributed with gloo: send and recv of tensors, a small tensor asking for each range."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from bench.transfer import child
from bench.transfer.child import Bytes, Call
from bench.transfer.shapes import Shape


def _join(rank: int, port: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, 2, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


def server() -> None:
    buffer = child.private_buffer()
    buffer[:] = child.pattern(1)
    tensor = torch.from_numpy(buffer)
    master = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    child.say({"port": master.port})
    _join(0, master.port)
    question, done = torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.uint8)
    while True:
        dist.recv(question, 1)
        writes, offset, size = question.tolist()
        if writes:
            dist.recv(tensor[offset : offset + size], 1)
            dist.send(done, 1)
        else:
            dist.send(tensor[offset : offset + size], 1)


def client(told: dict[str, Any]) -> tuple[Bytes, Any]:
    here = child.private_buffer()
    tensor = torch.from_numpy(here)
    _join(1, told["port"])

    def move(op: str, shape: Shape) -> Call:
        writes, size = op == "write", shape.size
        questions = [
            [
                (torch.tensor([writes, o, size], dtype=torch.int64), tensor[o : o + size])
                for o in shape.offsets(place)
            ]
            for place in range(shape.places)
        ]
        done = torch.zeros(1, dtype=torch.uint8)

        def call(place: int) -> None:
            for question, part in questions[place]:
                dist.send(question, 0)
                if writes:
                    dist.send(part, 0)
                    dist.recv(done, 0)
                else:
                    dist.recv(part, 0)

        return call

    return here, move


def main() -> None:
    child.begin()
    if sys.argv[1] == "server":
        server()
    here, move = client(child.hear())
    child.serve(move, here)


if __name__ == "__main__":
    main()
