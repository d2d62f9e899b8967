"""Writing blocks to one node: room first, then layers as they are made, then the commit."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client.base import Place
from moonpool.client.errors import BadRange, SessionOver
from moonpool.client.node_calls import NodeCalls
from moonpool.kv import BlockKey
from moonpool.messages.store import PutEndItem, PutItem, PutSlot
from moonpool.transfer.base import (
    Op,
    Priority,
    RemoteRegion,
    TransferEngineProtocol,
    TransferRequest,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one object, and where its bytes lie."""

    index: int
    start: int  # within the object
    place: Place
    length: int


class PutSession:
    """Made by `BlockStore.open_put`. Leaving it as a context without `finish` abandons it."""

    def __init__(
        self,
        calls: NodeCalls,
        transfer: TransferEngineProtocol,
        node: str,
        items: list[PutItem],
        slots: list[PutSlot],
        put: int,
        remote: RemoteRegion | None,
        ends_s: float,
    ) -> None:
        self.node = node
        self.keys = [BlockKey(item.key) for item in items]
        self.slots = slots
        self._calls = calls
        self._transfer = transfer
        self._sizes = [item.size_bytes for item in items]
        self._chunks = {item.chunk_bytes for item in items}
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
        the node did not want are skipped. Returns when the bytes are there. Raises SessionOver,
        BadRange (no such object, or chunk of it) and the transfer library's errors; ValueError when
        items have several chunk sizes. When it returns or raises, in any way, the local memory is
        no longer read."""
        if len(self._chunks) != 1:
            raise ValueError("chunks have numbers only where items have one chunk size")
        (chunk_bytes,) = self._chunks
        start, length = first * chunk_bytes, (last - first) * chunk_bytes
        pieces = [
            Piece(index, start, (region, offset + start), length)
            for index, (region, offset) in sources.items()
        ]
        await self.write_pieces(pieces, priority)

    async def write_pieces(
        self, pieces: Sequence[Piece], priority: Priority = Priority.BACKGROUND
    ) -> None:
        """As `write_chunks`, for any ranges of the objects."""
        for piece in pieces:
            self._require_piece(piece)
        wanted = [p for p in pieces if self.slots[p.index].status == "ok" and p.length]
        if not wanted:
            return
        left_s = self._ends_s - time.monotonic()
        if self._over or self._remote is None or left_s <= 0:
            raise SessionOver(f"the put on {self.node} is over")
        requests = [
            TransferRequest(
                Op.WRITE,
                piece.place[0],
                piece.place[1],
                self._remote,
                self.slots[piece.index].offset + piece.start,
                piece.length,
            )
            for piece in wanted
        ]
        await self._transfer.submit(requests, priority=priority, deadline_s=left_s)

    def _require_piece(self, piece: Piece) -> None:
        """Raises BadRange."""
        if not 0 <= piece.index < len(self._sizes):
            raise BadRange(f"object {piece.index} of {len(self._sizes)}")
        size_bytes = self._sizes[piece.index]
        if piece.start < 0 or piece.length < 0 or piece.start + piece.length > size_bytes:
            text = f"[{piece.start}, +{piece.length}) of object {piece.index}"
            raise BadRange(f"{text}, which has {size_bytes} bytes")

    async def finish(
        self,
        checksums: Mapping[int, bytes],
        takes: Mapping[int, BlockKey] | None = None,
        *,
        durable: bool = False,
    ) -> list[str]:
        """Commits what is given, by index, and abandons the rest of `wanted`; those in `takes` take
        over that key, whatever lies there. Per key: "committed", "abandoned", "corrupt", "expired",
        or the slot's own "exists", "busy", "no_space", "over_quota"; with `durable` also
        "not_durable": stored, but a crash would lose it."""
        results = [slot.status for slot in self.slots]
        if self._over:
            return results
        self._over = True
        wanted = self.wanted
        items = [
            PutEndItem(
                self.keys[i],
                self.slots[i].generation,
                checksums.get(i, b""),
                takes.get(i, b"") if takes else b"",
            )
            for i in wanted
        ]
        ended = await self._calls.put_end(self.node, self._put, items, durable=durable)
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
