"""A value seen where it lies, on a node of our own host: verified in place, under a lease."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from moonpool.bus import RequestTimeout
from moonpool.client.errors import LeaseLost
from moonpool.client.kit import Kit
from moonpool.client.line_asking import question
from moonpool.client.line_maps import CERTAIN_SHARE
from moonpool.client.reader import Reader
from moonpool.client.wants import Want
from moonpool.kv.checksum import bad_chunks
from moonpool.kv.named import Kind, read_trailer
from moonpool.messages import MoonpoolError
from moonpool.messages.codec import decode, encode
from moonpool.messages.keyed import KeyedEnd, KeyedGot, Said
from moonpool.messages.store import GetSlot
from moonpool.transfer import Nearby
from moonpool.transfer.line_frames import pack_line
from moonpool.transfer.lines import Line
from moonpool.transfer.vectored import StreamBroken

VIEW_LEASE_S = 30.0


@dataclass(frozen=True, slots=True)
class _Lease:
    """On one object of a node whose memory we share."""

    node: str
    near: Nearby
    slot: GetSlot
    id: int
    ends_s: float


@asynccontextmanager
async def viewed(kit: Kit, reader: Reader, want: Want) -> AsyncIterator[memoryview | None]:
    """The value, read-only, or None; a copy where it does not lie on our host in one piece. Raises
    LeaseLost at the end when what was seen does not count, and what a get raises."""
    lease, silent = None, None
    try:
        lease = await _lease(kit, want)
    except RequestTimeout as error:  # perhaps somebody else has it
        silent = error
    if lease is None:
        (read,) = await reader.read([want])
        value = read.result().unwrap()
        if value is None and silent is not None:
            raise silent
        yield None if value is None else memoryview(value)
        return
    try:
        hold = await lease.near.enter()
        try:
            slot = lease.slot
            whole = lease.near.view(hold)[slot.offset : slot.offset + slot.size_bytes].toreadonly()
            trailer = read_trailer(slot.data, slot.size_bytes)
            is_sound = trailer is not None and not bad_chunks(
                whole, slot.chunk_bytes, slot.checksums
            )
            if trailer is not None and is_sound:
                yield whole[: trailer.value_bytes]
                if hold.problem() is not None or time.monotonic() >= lease.ends_s:
                    raise LeaseLost(f"{want.name!r} was seen for longer than {lease.node} held it")
                return
        finally:
            hold.let_go()
    finally:
        await _end(kit, lease)
    (read,) = await reader.read([want])  # it is damaged: the bus says so, and tells the node
    value = read.result().unwrap()
    yield None if value is None else memoryview(value)


async def _lease(kit: Kit, want: Want) -> _Lease | None:
    """None where the value must be read as others are. Raises RequestTimeout."""
    (node,) = kit.mesh.home_of([want.key])
    try:
        return await _lease_at(kit, node, want)
    except MoonpoolError as error:
        kit.mesh.doubt(node, error)
        if isinstance(error, RequestTimeout):
            raise
        return None


async def _lease_at(kit: Kit, node: str, want: Want) -> _Lease | None:
    line = await kit.lines.lend(node)
    if line is None:
        return None
    near, done = kit.lines.near(node), False
    try:
        if near is None:
            done = True
            return None
        began_s = time.monotonic()
        frame = await kit.lines.ask(node, line, Said.GET, question([want], VIEW_LEASE_S))
        got = decode(frame.body, KeyedGot)
        done = True
    except StreamBroken:
        return None
    finally:
        if done:
            kit.lines.give_back(node, line)
        else:
            kit.lines.drop(node, line)
    slot = got.slots[0]
    if not got.lease:
        return None
    lease = _Lease(node, near, slot, got.lease, began_s + VIEW_LEASE_S * CERTAIN_SHARE)
    trailer = read_trailer(slot.data, slot.size_bytes)
    if trailer is None or trailer.kind is not Kind.VALUE:
        await _end(kit, lease)
        return None
    return lease


async def _end(kit: Kit, lease: _Lease) -> None:
    frame = pack_line(Said.END, kit.lines.next_number(), encode(KeyedEnd(lease.id)))
    line: Line | None = None
    done = False
    try:
        line = await kit.lines.lend(lease.node)
        if line is None:
            await kit.blocks.calls.get_end_unheard(lease.node, lease.id)
            return
        await kit.lines.tell(lease.node, line, *frame)
        done = True
    except (StreamBroken, MoonpoolError):
        return  # it ends by itself
    finally:
        if line is not None and done:
            kit.lines.give_back(lease.node, line)
        elif line is not None:
            kit.lines.drop(lease.node, line)
