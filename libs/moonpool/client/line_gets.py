"""Reading values over a line: one question, and the bytes in its answer.

What comes this way is verified as everything is. What cannot be had this way, for whatever reason,
is None: then the bus is asked, which also says what is wrong.
"""

from collections.abc import Sequence

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.client.kit import Kit
from moonpool.client.line_asking import Room, entered, question, settled
from moonpool.client.line_maps import get_by_map
from moonpool.client.spans import Span
from moonpool.client.targets import Target, is_chunk, target_of
from moonpool.client.wants import Read, Want
from moonpool.client.watch import answer_of
from moonpool.kv.named import read_trailer
from moonpool.messages import MoonpoolError
from moonpool.messages.codec import decode
from moonpool.messages.keyed import KeyedGot, Said
from moonpool.messages.store import GetSlot
from moonpool.transfer.lines import Line
from moonpool.transfer.vectored import StreamBroken

AHEAD_BYTES = 256 << 10  # taken in before they are verified, while the cache has them
LONG_BYTES = 1 << 20  # of one object: its owner may die or stop in the middle of them
COUNTS = 1  # the last byte of a payload that does


async def get_on_line(kit: Kit, node: str, wants: Sequence[Want]) -> list[Read | None] | None:
    """What became of each want. Raises NoResponder, RequestTimeout."""
    line = await kit.lines.lend(node)
    if line is None:
        return None
    done = False
    try:
        near = kit.lines.near(node)
        if near is not None:
            out = await get_by_map(kit, node, line, near, wants)
        else:
            out = await _get(kit, node, line, wants)
        done = True
        return out
    except (NoResponder, RequestTimeout):
        raise
    except (StreamBroken, MoonpoolError, TimeoutError):
        return None
    finally:
        if done:
            kit.lines.give_back(node, line)
        else:
            kit.lines.drop(node, line)


async def _get(kit: Kit, node: str, line: Line, wants: Sequence[Want]) -> list[Read | None]:
    ask = question(wants)
    frame = await kit.lines.ask(node, line, Said.GET, ask)
    got = decode(frame.body, KeyedGot)
    if len(got.slots) != len(wants) or len(got.sent_bytes) != len(wants):
        raise StreamBroken(0, "an answer to other keys")
    out = [settled(node, slot, want) for slot, want in zip(got.slots, wants, strict=True)]
    comes = [index for index, sent in enumerate(got.sent_bytes) if sent]
    if sum(got.sent_bytes) + bool(comes) != frame.payload_bytes:
        raise StreamBroken(0, "the answer's bytes are not what it says")
    for index in comes:
        sent_bytes = got.sent_bytes[index]
        receiving = _receive(kit, node, line, got.slots[index], wants[index], sent_bytes)
        if sent_bytes < LONG_BYTES:
            out[index] = await receiving
        else:
            out[index] = await answer_of(receiving, lambda: kit.blocks.calls.probe(node))
    if comes:
        verdict = memoryview(bytearray(1))
        await line.take(verdict, kit.lines.timeout_s)
        if verdict[0] != COUNTS:  # the lease ran out before the bytes had left
            for index in comes:
                out[index] = None
    return out


async def _receive(
    kit: Kit, node: str, line: Line, slot: GetSlot, want: Want, sent_bytes: int
) -> Read | None:
    """One object's bytes, to where they belong. Raises StreamBroken when there is no such place:
    nobody reads on then."""
    trailer = read_trailer(slot.data, slot.size_bytes)
    if trailer is None:
        raise StreamBroken(0, f"{want.name!r} is no value")
    start, end = want.range_of(trailer.value_bytes)
    span = Span(start, end, slot.chunk_bytes)
    place = Room(want.into, end - start)
    with entered(want.into, line):
        target = target_of(span, place.view)
        if target.bytes_total != sent_bytes:
            raise StreamBroken(0, "other chunks than were asked for")
        is_sound = await _fill(line, target, slot.checksums, kit.lines.timeout_s)
    return place.read() if is_sound else None


async def _fill(line: Line, target: Target, checksums: bytes, timeout_s: float) -> bool:
    """Whether all chunks are what they should be. Those that are whole are looked at while others
    are on their way."""
    body, size, end = target.body, target.span.chunk_bytes, target.plain_bytes
    is_sound, got, summed = True, 0, 0
    while got < end:
        part = line.take_now(body[got:end])
        got += part
        if part and got < end and got - summed < AHEAD_BYTES:
            continue
        whole = got - got % size
        if whole > summed:
            is_sound &= target.are_chunks(summed, whole, checksums)
            summed = whole
            await line.rest()
        elif not part:
            await line.more(timeout_s)
    for chunk, parts in target.chunks():
        for view in parts:
            await line.take(view, timeout_s)
        is_sound &= is_chunk(parts, chunk, checksums)
        await line.rest()
    return is_sound
