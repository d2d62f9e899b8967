"""What a get over a line is answered with: slots, and the bytes that follow them under a lease."""

from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.messages.ids import TenantId
from moonpool.messages.keyed import KeyedGet, KeyedGot
from moonpool.messages.store import GetSlot, GetStartRequest
from services.store.errors import BadRequest
from services.store.node import StoreNode, hint_of, keys_of
from services.store.whole import with_data

SEND_S = 30.0  # a lease that covers the sending: what lasts longer is told not to count
INLINE_ROOM_BYTES = 512 << 10  # of an answer's body
PAYLOAD_MAX_BYTES = 64 << 20


@dataclass(slots=True)
class Answer:
    """`ranges` are (place in the segment, length), in the order of slots."""

    reply: KeyedGot
    ranges: list[tuple[int, int]]
    lease: int  # to be ended once the bytes are out; 0: none
    ends_s: float

    @property
    def payload_bytes(self) -> int:
        """With the byte that says whether all before it count."""
        return sum(length for _, length in self.ranges) + 1 if self.ranges else 0

    def views(self, segment: memoryview) -> list[memoryview]:
        return [segment[place : place + length] for place, length in self.ranges]


def begin_get(node: StoreNode, tenant: TenantId, ask: KeyedGet) -> Answer:
    """Takes a lease on what is there. Raises BadRequest, TooManySessions."""
    keys = keys_of(ask.keys)
    if ask.starts and not len(ask.starts) == len(ask.lengths) == len(keys):
        raise BadRequest("a range for each key, or for none")
    now_s = node.now()
    lease_s = min(ask.lease_s or SEND_S, node.core.limits.lease_max_s)
    lease, slots = node.core.get_start(tenant, keys, lease_s, now_s, hint_of(ask.run_blocks))
    node.settle()
    wants = GetStartRequest(
        tenant, ask.keys, inline_bytes=ask.inline_bytes, tail_bytes=ask.tail_bytes
    )
    is_all = with_data(node.core, node.region.view, wants, keys, slots, INLINE_ROOM_BYTES)
    if lease and is_all:
        node.core.get_end(lease, node.now())
        lease = 0
    if ask.lease_s:
        return Answer(KeyedGot(slots, [], lease, node.readers if lease else None), [], 0, 0.0)
    ranges: list[tuple[int, int]] = []
    sent = _fill(ask, slots, ranges)
    answer = Answer(KeyedGot(slots, sent), ranges, lease, now_s + lease_s)
    if lease and not ranges:
        end_get(node, answer)
    return answer


def end_get(node: StoreNode, answer: Answer) -> None:
    """The bytes are out, or never will be. Idempotent."""
    if answer.lease:
        node.core.get_end(answer.lease, node.now())
        node.settle()
        answer.lease = 0


def _fill(ask: KeyedGet, slots: Sequence[GetSlot], ranges: list[tuple[int, int]]) -> list[int]:
    """Bytes to send per slot; where they lie goes to `ranges`."""
    room_bytes = min(ask.payload_max_bytes, PAYLOAD_MAX_BYTES)
    sent = []
    for index, slot in enumerate(slots):
        length = 0
        if slot.status == "hit" and len(slot.data) != slot.size_bytes:
            start, length = chunks_of(slot, ask, index)
            if 0 < length <= room_bytes:
                room_bytes -= length
                ranges.append((slot.offset + start, length))
            else:
                length = 0
        sent.append(length)
    return sent


def chunks_of(slot: GetSlot, ask: KeyedGet, index: int) -> tuple[int, int]:
    """(start, length) within the object: whole chunks around what is wanted of it."""
    if not ask.starts:
        return 0, slot.size_bytes
    start, length = ask.starts[index], ask.lengths[index]
    end = slot.size_bytes if length < 0 else min(slot.size_bytes, start + length)
    if not 0 <= start < end:
        return 0, 0
    first, last = start // slot.chunk_bytes, -(-end // slot.chunk_bytes)
    return first * slot.chunk_bytes, (last - first) * slot.chunk_bytes
