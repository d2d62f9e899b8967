"""Small objects that travel in the message itself: one exchange, no transfer. Copying happens on
the event loop, in one go with what the core decides, so readers see all of it or nothing."""

import os
from collections.abc import Sequence

import msgspec

from moonpool.kv import KEY_BYTES, BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages.ids import TenantId
from moonpool.messages.store import (
    INLINE_MAX_BYTES,
    GetSlot,
    GetStartRequest,
    PutEndItem,
    PutItem,
    WholeItem,
)
from services.store.core import StoreCore
from services.store.errors import BadRequest
from services.store.objects import State

TAIL_MAX_BYTES = 64
PUT_TTL_S = 1.0  # never runs out: the put begins and ends in one call


def put_whole(
    core: StoreCore, segment: memoryview, tenant: TenantId, items: Sequence[WholeItem], now_s: float
) -> list[str]:
    """Stores all items; a result each, as in PutWholeReply. Raises BadRequest and what a put
    raises."""
    results = [_doubt(core, item) for item in items]
    fit = [i for i, result in enumerate(results) if not result]
    if not fit:
        return results
    takes = {i: items[i].key for i in fit if items[i].replace}
    keys = {i: BlockKey(os.urandom(KEY_BYTES) if i in takes else items[i].key) for i in fit}
    wants = [PutItem(keys[i], len(items[i].data), len(items[i].data)) for i in fit]
    put, slots = core.put_start(tenant, wants, PUT_TTL_S, now_s)
    ends: list[tuple[int, PutEndItem]] = []
    for i, slot in zip(fit, slots, strict=True):
        results[i] = slot.status
        if slot.status == "ok":
            data = items[i].data
            segment[slot.offset : slot.offset + len(data)] = data
            takes_key = takes.get(i, b"")
            ends.append((i, PutEndItem(keys[i], slot.generation, items[i].checksum, takes_key)))
    if put:
        commit = core.begin_commit(put, [end for _, end in ends], now_s)
        done = core.finish_commit(commit, [True] * len(commit.doubtful), now_s)
        for (i, _), result in zip(ends, done, strict=True):
            results[i] = result
    return results


def with_data(
    core: StoreCore,
    segment: memoryview,
    request: GetStartRequest,
    keys: Sequence[BlockKey],
    slots: list[GetSlot],
    room_bytes: int,
) -> bool:
    """Fills in what the request wants inline, as far as `room_bytes` go. Whether every hit's whole
    object is in its slot, so that there is nothing left to read."""
    inline_bytes = min(max(0, request.inline_bytes), INLINE_MAX_BYTES)
    tail_bytes = min(max(0, request.tail_bytes), TAIL_MAX_BYTES)
    is_all = True
    for index, (key, slot) in enumerate(zip(keys, slots, strict=True)):
        if slot.status != "hit":
            continue
        obj = core.residents.objects.get(key)
        if (
            obj is None or obj.generation != slot.generation
        ):  # removed meanwhile: the lease holds it
            is_all = False
            continue
        is_whole = 0 < obj.size_bytes <= inline_bytes
        want_bytes = obj.size_bytes if is_whole else min(tail_bytes, obj.size_bytes)
        is_all &= is_whole and want_bytes <= room_bytes
        if 0 < want_bytes <= room_bytes:
            room_bytes -= want_bytes
            end = obj.place + obj.size_bytes
            data = bytes(segment[end - want_bytes : end])
            slots[index] = msgspec.structs.replace(slot, data=data)
    return is_all


def _doubt(core: StoreCore, item: WholeItem) -> str:
    """Why an item is not stored; "" when nothing speaks against it. Raises BadRequest."""
    if len(item.key) != KEY_BYTES or not 0 < len(item.data) <= INLINE_MAX_BYTES:
        raise BadRequest(
            f"an object in a message has a key of {KEY_BYTES} and 1 to {INLINE_MAX_BYTES} bytes"
        )
    if chunk_checksums(memoryview(item.data), len(item.data)) != item.checksum:
        return "corrupt"
    if item.expected:
        there = core.residents.objects.get(BlockKey(item.key))
        is_same = there is not None and there.state is State.LIVE
        if there is None or not is_same or there.generation != item.expected:
            return "changed"
    return ""
