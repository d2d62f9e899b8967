"""A put over a line: room is made, the bytes come straight to their place, are summed on the way,
compared with the sums that come after them, and committed."""

import os
from collections.abc import Callable

from moonpool.kv import KEY_BYTES, BlockKey
from moonpool.kv.checksum import CHECKSUM_BYTES, chunk_checksums
from moonpool.messages.ids import TenantId
from moonpool.messages.keyed import KeyedItem
from moonpool.messages.segments import RegionGrant
from moonpool.messages.store import PutEndItem, PutItem, PutSlot
from services.store.asking import check_item
from services.store.errors import BadRequest
from services.store.node import ERASED_MAX_S, StoreNode

PUT_S = 30.0  # for all bytes to come
PIECE_BYTES = 256 << 10  # of what nobody wants

Receive = Callable[[memoryview], None]  # fills it with what comes next


class LinePut:
    """One question. `open`, then `admit` and `receive` (on a thread), or `store`, then `finish`,
    which must follow `open` whatever happens."""

    def __init__(self, node: StoreNode, tenant: TenantId, items: list[KeyedItem]) -> None:
        """Raises BadRequest, ObjectTooLarge."""
        self._node = node
        self._tenant = tenant
        self._items = items
        self._keys = [
            BlockKey(os.urandom(KEY_BYTES) if item.replace else item.key) for item in items
        ]
        self._slots: list[PutSlot] = []
        self._put = 0
        self._epoch = node.presence.epoch
        self._grant: RegionGrant | None = None
        self._sums: list[bytes] = []  # of what came
        self._said: list[bytes] = []  # of what was sent, as its sender says
        for item in items:
            check_item(self._item(item), node.core.residents.tier.bytes_total)

    @staticmethod
    def _item(item: KeyedItem, key: bytes | None = None) -> PutItem:
        return PutItem(item.key if key is None else key, item.size_bytes, item.chunk_bytes)

    @property
    def bytes_total(self) -> int:
        return sum(item.size_bytes for item in self._items)

    @property
    def payload_bytes(self) -> int:
        """Of the frame: the items, then a checksum for every chunk."""
        chunks = sum(item.size_bytes // item.chunk_bytes for item in self._items)
        return self.bytes_total + chunks * CHECKSUM_BYTES

    async def make_room(self) -> None:
        await self._node.make_room([item.size_bytes for item in self._items])

    def open(self) -> None:
        """Raises NodeDraining, TooManySessions."""
        wants = [self._item(item, key) for item, key in zip(self._items, self._keys, strict=True)]
        node = self._node
        self._put, self._slots = node.core.put_start(self._tenant, wants, PUT_S, node.now())
        node.settle()

    def admit(self) -> None:
        """A grant for whoever brings the bytes: when the put runs out of time, they are kept out
        of places that are another's by then."""
        if self._put:
            sizes = [item.size_bytes for item in self._items]
            self._grant, self._slots = self._node.writers.admit(
                self._put, self._slots, sizes, PUT_S
            )

    def receive(self, receive: Receive, cut: Callable[[], None]) -> None:
        """On a thread. Raises what `receive` raises, GrantRefused."""
        region, grant = self._node.region, self._grant
        low = grant.offset if grant is not None else 0
        places = [low + slot.offset if slot.status == "ok" else -1 for slot in self._slots]
        wanted = [i for i, place in enumerate(places) if place >= 0]
        held = None
        if grant is not None:
            at = [places[i] for i in wanted]
            sizes = [self._items[i].size_bytes for i in wanted]
            held, _ = region.table.enter(region.id, grant.key, "w", at, sizes, cut)
        try:
            view = region.view
            for place, item in zip(places, self._items, strict=True):
                if place < 0:
                    _discard(receive, item.size_bytes)
                    self._sums.append(b"")
                else:
                    room = view[place : place + item.size_bytes]
                    self._sums.append(_summed(receive, room, item.chunk_bytes))
        finally:
            if held is not None:
                region.table.leave(held)
        sums = bytearray(self.payload_bytes - self.bytes_total)
        receive(memoryview(sums))
        self._take_sums(bytes(sums))

    def store(self, payload: memoryview) -> None:
        """The same, of a payload that has come already."""
        view, at = self._node.region.view, 0
        for slot, item in zip(self._slots, self._items, strict=True):
            body = payload[at : at + item.size_bytes]
            at += item.size_bytes
            if slot.status == "ok":
                place = view[slot.offset : slot.offset + item.size_bytes]
                place[:] = body
                self._sums.append(chunk_checksums(place, item.chunk_bytes))
            else:
                self._sums.append(b"")
        self._take_sums(bytes(payload[at:]))

    def _take_sums(self, said: bytes) -> None:
        at = 0
        for item in self._items:
            length = item.size_bytes // item.chunk_bytes * CHECKSUM_BYTES
            self._said.append(said[at : at + length])
            at += length

    def finish(self) -> list[str]:
        """Commits what came whole and sound, and gives up the rest. A result per item. Then the
        node is to settle."""
        node, results = self._node, [slot.status for slot in self._slots]
        wanted = [i for i, slot in enumerate(self._slots) if slot.status == "ok"]
        if not self._put:
            return results
        if node.presence.epoch != self._epoch:  # whoever sent it has given up, and gone elsewhere
            self._said = []
        ends = [
            PutEndItem(
                self._keys[i],
                self._slots[i].generation,
                self._said[i] if self._said else b"",
                self._items[i].key if self._items[i].replace else b"",
            )
            for i in wanted
        ]
        commit = node.core.begin_commit(self._put, ends, node.now())
        node.settle()  # nobody can write there any more
        sound = [self._sums[wanted[at]] == sums for at, _, sums in commit.doubtful]
        done = node.core.finish_commit(commit, sound, node.now())
        for index, result in zip(wanted, done, strict=True):
            results[index] = result
        return results

    async def wait_erased(self) -> None:
        """As `put_end`: else a crash would bring back what was replaced."""
        if any(item.replace for item in self._items):
            self._node.settle()
            await self._node.mover.wait_erased(ERASED_MAX_S)


def require_payload(put: LinePut, payload_bytes: int) -> None:
    """Raises BadRequest."""
    if put.payload_bytes != payload_bytes:
        raise BadRequest(f"{payload_bytes} bytes where {put.payload_bytes} were announced")


def _summed(receive: Receive, room: memoryview, chunk_bytes: int) -> bytes:
    sums = []
    for at in range(0, room.nbytes, chunk_bytes):
        chunk = room[at : at + chunk_bytes]
        receive(chunk)
        sums.append(chunk_checksums(chunk, chunk_bytes))  # while it is in the cache
    return b"".join(sums)


def _discard(receive: Receive, size_bytes: int) -> None:
    sink = memoryview(bytearray(min(size_bytes, PIECE_BYTES)))
    while size_bytes:
        part = sink[: min(size_bytes, len(sink))]
        receive(part)
        size_bytes -= len(part)
