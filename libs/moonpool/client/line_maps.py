"""Reading values of a node on our own host over a line: it says where they lie, and holds them
there by a lease while we copy and verify them, chunk by chunk."""

import time
from collections.abc import Sequence

from moonpool.client.kit import Kit
from moonpool.client.line_asking import Room, entered, question, settled
from moonpool.client.spans import Span
from moonpool.client.targets import is_chunk, target_of
from moonpool.client.wants import Read, Want
from moonpool.kv.named import read_trailer
from moonpool.messages.codec import decode, encode
from moonpool.messages.keyed import KeyedEnd, KeyedGot, Said
from moonpool.messages.store import GetSlot
from moonpool.transfer import Nearby
from moonpool.transfer.line_frames import pack_line
from moonpool.transfer.lines import Line
from moonpool.transfer.vectored import StreamBroken

LEASE_S = 10.0
STEP_BYTES = 256 << 10  # copied, and verified while the cache has them
CERTAIN_SHARE = 0.75  # of a lease, from before it was asked for: so long it has surely lasted


async def get_by_map(
    kit: Kit, node: str, line: Line, near: Nearby, wants: Sequence[Want]
) -> list[Read | None]:
    """As `get_on_line`. Raises StreamBroken and what the node and `near` raise."""
    counts_until_s = time.monotonic() + LEASE_S * CERTAIN_SHARE
    frame = await kit.lines.ask(node, line, Said.GET, question(wants, lease_s=LEASE_S))
    got = decode(frame.body, KeyedGot)
    if len(got.slots) != len(wants) or frame.payload_bytes:
        raise StreamBroken(0, "an answer to other keys")
    out: list[Read | None] = []
    left: list[int] = []
    for index, (slot, want) in enumerate(zip(got.slots, wants, strict=True)):
        out.append(settled(node, slot, want))
        if out[-1] is None and slot.status == "hit":
            left.append(index)
    if got.lease:
        if left:
            await _copy(line, near, got.slots, wants, left, out)
            if time.monotonic() >= counts_until_s:
                for index in left:
                    out[index] = None
        end = encode(KeyedEnd(got.lease))
        await kit.lines.tell(node, line, *pack_line(Said.END, kit.lines.next_number(), end))
    return out


async def _copy(
    line: Line,
    near: Nearby,
    slots: Sequence[GetSlot],
    wants: Sequence[Want],
    left: Sequence[int],
    out: list[Read | None],
) -> None:
    hold = await near.enter()
    try:
        memory = near.view(hold)
        for index in left:
            out[index] = await _copy_one(line, memory, slots[index], wants[index])
        if hold.problem() is not None:
            for index in left:
                out[index] = None
    finally:
        hold.let_go()


async def _copy_one(line: Line, memory: memoryview, slot: GetSlot, want: Want) -> Read | None:
    trailer = read_trailer(slot.data, slot.size_bytes)
    if trailer is None or slot.offset + slot.size_bytes > len(memory):
        return None
    start, end = want.range_of(trailer.value_bytes)
    room = Room(want.into, end - start)
    target = target_of(Span(start, end, slot.chunk_bytes), room.view)
    is_sound = True
    with entered(want.into, line):
        body, base = target.body, slot.offset + target.span.first * slot.chunk_bytes
        step = max(1, STEP_BYTES // slot.chunk_bytes) * slot.chunk_bytes
        for low in range(0, target.plain_bytes, step):
            high = min(low + step, target.plain_bytes)
            body[low:high] = memory[base + low : base + high]
            is_sound &= target.are_chunks(low, high, slot.checksums)
            await line.rest()
        for chunk, parts in target.chunks():
            at = slot.offset + chunk * slot.chunk_bytes
            for part in parts:
                part[:] = memory[at : at + part.nbytes]
                at += part.nbytes
            is_sound &= is_chunk(parts, chunk, slot.checksums)
            await line.rest()
    return room.read() if is_sound else None
