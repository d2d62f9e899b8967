"""Writing blocks to one node: room first, then layers as they are made, then the commit."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client.errors import SessionOver
from moonpool.client.node_calls import NodeCalls
from moonpool.kv import BlockKey
from moonpool.messages.store import PutEndItem, PutSlot
from moonpool.transfer.base import (
    Op,
    Priority,
    Region,
    RemoteRegion,
    TransferEngineProtocol,
    TransferRequest,
)

Place = tuple[Region, int]  # local memory: a region, and where in it the object begins


class PutSession:
    """Made by `BlockStore.open_put`. Leaving it as a context without `finish` abandons it."""

    def __init__(
        self,
        calls: NodeCalls,
        transfer: TransferEngineProtocol,
        node: str,
        keys: list[BlockKey],
        slots: list[PutSlot],
        chunk_bytes: int,
        put: int,
        remote: RemoteRegion | None,
        ends_s: float,
    ) -> None:
        self.node = node
        self.keys = keys
        self.slots = slots
        self._calls = calls
        self._transfer = transfer
        self._chunk_bytes = chunk_bytes
        self._put = put
        self._remote = remote  # None when no slot is "ok"
        self._ends_s = ends_s
        self._over = remote is None

    @property
    def wanted(self) -> list[int]:
        """Indices of the keys whose bytes the node waits for."""
        return [i for i, slot in enumerate(self.slots) if slot.status == "ok"]

    async def write_chunks(
        self,
        first: int,
        last: int,
        sources: Mapping[int, Place],
        priority: Priority = Priority.BACKGROUND,
    ) -> None:
        """Writes chunks (layers) `[first, last)` of the objects with these indices; those that
        the node did not want are skipped. Returns when the bytes are there. Raises SessionOver and
        the transfer library's errors. When it returns or raises, in any way, the local memory is
        no longer read."""
        wanted = {i: place for i, place in sources.items() if self.slots[i].status == "ok"}
        if not wanted:
            return
        left_s = self._ends_s - time.monotonic()
        if self._over or self._remote is None or left_s <= 0:
            raise SessionOver(f"the put on {self.node} is over")
        start, length = first * self._chunk_bytes, (last - first) * self._chunk_bytes
        requests = [
            TransferRequest(
                Op.WRITE,
                region,
                offset + start,
                self._remote,
                self.slots[index].offset + start,
                length,
            )
            for index, (region, offset) in wanted.items()
        ]
        await self._transfer.submit(requests, priority=priority, deadline_s=left_s)

    async def finish(self, checksums: Mapping[int, bytes]) -> list[str]:
        """Commits what is given, by index, and abandons the rest of `wanted`. Per key: "committed",
        "abandoned", "corrupt", "expired", or the slot's own "exists", "busy", "no_space"."""
        results = [slot.status for slot in self.slots]
        if self._over:
            return results
        self._over = True
        wanted = self.wanted
        items = [
            PutEndItem(self.keys[i], self.slots[i].generation, checksums.get(i, b""))
            for i in wanted
        ]
        ended = await self._calls.put_end(self.node, self._put, items)
        for index, result in zip(wanted, ended, strict=True):
            results[index] = result
        return results

    async def abandon(self) -> None:
        """Gives the room back at once. Idempotent; a node that is gone does not matter."""
        try:
            await self.finish({})
        except (NoResponder, RequestTimeout):
            return  # the node's own clock reclaims it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.abandon()
