"""A vLLM as far as its KV events go: a PUB socket, a ROUTER that replays, and the batches."""

import asyncio
from collections import deque
from typing import Any

import msgspec
import zmq
import zmq.asyncio


def stored(
    hashes: list[Any], parent: Any, tokens: list[int], block_tokens: int = 4, **more: Any
) -> list[Any]:
    """As vLLM writes it in arrays; `more`: medium, lora_name, extra_keys, group_idx."""
    names = ("medium", "lora_name", "extra_keys", "group_idx")
    tail = [more.get(name) for name in names]
    return ["BlockStored", hashes, parent, tokens, block_tokens, more.get("lora_id"), *tail]


def removed(hashes: list[Any], medium: str | None = "GPU") -> list[Any]:
    return ["BlockRemoved", hashes, medium]


CLEARED = ["AllBlocksCleared"]


def batch(*events: Any, at_s: float = 1.0) -> bytes:
    return msgspec.msgpack.encode([at_s, list(events), 0])


class Publisher:
    """`async with Publisher(keeps=100) as engine: await engine.publish(stored(..))`."""

    def __init__(self, keeps: int = 100) -> None:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.replay_endpoint = f"tcp://127.0.0.1:{port}"
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self.seq = 0
        self.time_s = 1.0
        self.replays = 0

    async def publish(self, *events: Any, lost: bool = False) -> None:
        """One batch; `lost`: it is numbered and kept, and never arrives."""
        self.time_s += 1.0
        payload = batch(*events, at_s=self.time_s)
        self._kept.append((self.seq, payload))
        if not lost:
            await self._pub.send_multipart([b"kv", self.seq.to_bytes(8, "big"), payload])
        self.seq += 1

    def begin_anew(self) -> None:
        self.seq = 0
        self._kept.clear()

    async def _answer(self) -> None:
        while True:
            client, empty, first = await self._router.recv_multipart()
            self.replays += 1
            for seq, payload in self._kept:
                if seq >= int.from_bytes(first, "big"):
                    frames = [client, empty, seq.to_bytes(8, "big"), payload]
                    await self._router.send_multipart(frames)
            end = (-1).to_bytes(8, "big", signed=True)
            await self._router.send_multipart([client, empty, end, b""])

    async def __aenter__(self) -> "Publisher":
        self._task = asyncio.create_task(self._answer())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._pub.close()
        self._router.close()
        self._context.term()
