"""Stripes of large values: read from whichever copy is at hand, written, and taken away."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moonpool.bus import NoResponder
from moonpool.client.base import Place
from moonpool.client.errors import CorruptValue, LeaseLost, StillLoading
from moonpool.client.finding import look_for
from moonpool.client.get_session import SpanRead
from moonpool.client.kit import Kit
from moonpool.client.manifest import Manifest
from moonpool.client.spans import Span
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError, PeerError

SESSION_BYTES = 32 << 20  # of stripes read under one lease
SESSIONS_MAX = 4  # at a time, per value
LOADS_MAX = 5  # answers "on its way" in a row
PATIENCE_S = 1.0  # with a slow node, while another has a copy


class PartsLost(PeerError):
    """A stripe is on no node: it was evicted, replaced, or went with its node. `is_certain`: all
    of its nodes say so, and nobody is silent who may have it."""

    code = "parts_lost"

    def __init__(self, message: str, is_certain: bool) -> None:
        super().__init__(message)
        self.is_certain = is_certain


@dataclass(slots=True)
class _Part:
    """One stripe's share of a read."""

    index: int
    key: BlockKey
    start: int  # within the stripe
    end: int
    place: Place
    nodes: list[str]  # not tried yet
    error: MoonpoolError | None = None
    is_elsewhere: bool = False  # on none of its nodes: all others were asked
    is_away: bool = False  # one of its nodes is gone, and may come back with what its disk holds
    waits: int = 0  # for lower tiers
    is_done: bool = False


async def read_parts(
    kit: Kit, key: BlockKey, manifest: Manifest, start: int, end: int, place: Place
) -> bool:
    """Fills `place` with `[start, end)` of a value, verified; whether all of it was where the
    manifest says. Raises PartsLost, or what the last node raised that may have it."""
    parts = left = _parts(key, manifest, start, end, place)
    while left:
        stray = [part for part in left if not part.nodes]
        if stray:
            await _look_elsewhere(kit, manifest, stray)
        limit = asyncio.Semaphore(SESSIONS_MAX)
        async with asyncio.TaskGroup() as group:
            for node, some in _by_node(kit, left):
                group.create_task(_read_some(kit, node, some, limit))
        left = [part for part in left if not part.is_done]
    return not any(part.is_elsewhere for part in parts)


async def erase_parts(
    kit: Kit, values: Iterable[tuple[BlockKey, Manifest]], *, elsewhere: bool = False
) -> None:
    """Takes all copies of all stripes away, as far as their nodes can be reached. `elsewhere`:
    also those that nodes have given to others."""
    by_node: dict[str, list[BlockKey]] = defaultdict(list)
    single: list[BlockKey] = []
    several: list[BlockKey] = []
    for key, manifest in values:
        for node, keys in manifest.by_node(key).items():
            by_node[node] += keys
        for part, nodes in zip(manifest.part_keys(key), manifest.places, strict=True):
            (single if len(nodes) == 1 else several).append(part)
    gone = await asyncio.gather(*(erase(kit, node, keys) for node, keys in by_node.items()))
    stray = [*several, *set(single).difference(*gone)]
    if elsewhere and stray:
        await asyncio.gather(*(erase(kit, node, stray) for node in kit.mesh.readable()))


async def erase(kit: Kit, node: str, keys: Sequence[BlockKey]) -> set[BlockKey]:
    """Those that were there. Best effort: what stays is evicted some day, for nobody reads it any
    more."""
    calls = kit.blocks.calls
    try:
        results = await calls.remove(node, kit.tenant, keys)
        pinned = [key for key, result in zip(keys, results, strict=True) if result == "pinned"]
        if pinned:
            await calls.pin(node, kit.tenant, pinned, "none", 0.0)
            await calls.remove(node, kit.tenant, pinned)
    except MoonpoolError as error:
        kit.mesh.doubt(node, error)
        return set()
    return {key for key, result in zip(keys, results, strict=True) if result != "miss"}


async def missing_parts(kit: Kit, key: BlockKey, manifest: Manifest) -> list[int]:
    """Stripes that are on no node; one message per node, and one to all others for what is not
    where it should be. A node that does not answer has none, and is not asked again before it is
    heard."""
    by_node: dict[str, list[int]] = defaultdict(list)
    for index, nodes in enumerate(manifest.places):
        for node in nodes:
            if not kit.mesh.is_silent(node):
                by_node[node].append(index)
    keys = manifest.part_keys(key)

    async def look(node: str, parts: list[int]) -> set[int]:
        try:
            found = await kit.blocks.exist(node, kit.tenant, [keys[i] for i in parts])
        except MoonpoolError as error:
            kit.mesh.doubt(node, error)
            return set()
        return {i for i, is_there in zip(parts, found, strict=True) if is_there}

    there = await asyncio.gather(*(look(node, parts) for node, parts in by_node.items()))
    stray = [i for i in range(len(keys)) if not any(i in some for some in there)]
    if not stray:
        return []
    seen = await look_for(kit, [keys[i] for i in stray])
    return [i for i in stray if not seen.by_key[keys[i]]]


def _parts(key: BlockKey, manifest: Manifest, start: int, end: int, place: Place) -> list[_Part]:
    keys = manifest.part_keys(key)
    parts = []
    first, last = start // manifest.stripe_bytes, -(-end // manifest.stripe_bytes)
    for index in range(first, last):
        low = index * manifest.stripe_bytes
        part_start = max(start - low, 0)
        part_end = min(end - low, manifest.part_bytes(index))
        at = (place[0], place[1] + low + part_start - start)
        nodes = list(manifest.places[index])
        parts.append(_Part(index, keys[index], part_start, part_end, at, nodes))
    return parts


async def _look_elsewhere(kit: Kit, manifest: Manifest, parts: Sequence[_Part]) -> None:
    """Gives parts that none of their nodes has the nodes that have them, once. Raises as
    `read_parts`."""
    for part in parts:
        if part.is_elsewhere:
            raise part.error or _lost(part, is_certain=False)
    seen = await look_for(kit, [part.key for part in parts])
    for part in parts:
        tried = manifest.places[part.index] if part.error is not None else ()
        part.nodes = [node for node in seen.by_key[part.key] if node not in tried]
        part.is_elsewhere = True
        if not part.nodes:
            raise part.error or _lost(part, is_certain=not seen.silent and not part.is_away)


def _lost(part: _Part, is_certain: bool) -> PartsLost:
    return PartsLost(f"stripe {part.index} of a value is nowhere", is_certain)


def _by_node(kit: Kit, parts: Sequence[_Part]) -> list[tuple[str, list[_Part]]]:
    """Each part with one of its nodes, in groups that one lease covers."""
    local, alive = kit.mesh.local(), set(kit.mesh.readable())
    by_node: dict[str, list[_Part]] = defaultdict(list)
    for part in parts:
        usable = [node for node in part.nodes if node in alive] or part.nodes
        node = kit.sources.pick(usable, local)
        part.nodes.remove(node)
        by_node[node].append(part)
    groups: list[tuple[str, list[_Part]]] = []
    for node, some in by_node.items():
        room_bytes = 0
        for part in some:
            if part.end - part.start > room_bytes:
                groups.append((node, []))
                room_bytes = SESSION_BYTES
            groups[-1][1].append(part)
            room_bytes -= part.end - part.start
    return groups


async def _read_some(kit: Kit, node: str, parts: Sequence[_Part], limit: asyncio.Semaphore) -> None:
    """Marks parts that were read as done, and notes on the others why not."""
    size_bytes = sum(part.end - part.start for part in parts)
    try:
        async with limit, kit.sources.reading(node, size_bytes):
            await _read_under_lease(kit, node, parts)
    except MoonpoolError as error:
        kit.mesh.doubt(node, error)
        for part in parts:
            if isinstance(error, NoResponder):
                part.is_away = True
            else:
                part.error = error


async def _read_under_lease(kit: Kit, node: str, parts: Sequence[_Part]) -> None:
    has_choice = all(part.nodes for part in parts)
    if kit.mesh.is_silent(node):
        raise PeerError(f"{node} is silent", code="silent")
    blocks = kit.blocks
    opening = blocks.open_get(
        node, kit.tenant, [part.key for part in parts], wait_s=blocks.wait_max_s
    )
    try:
        async with asyncio.timeout(PATIENCE_S if has_choice else None):
            session = await opening
    except TimeoutError:
        raise PeerError(f"{node} is slow", code="slow") from None
    async with session as get:
        reads = []
        for index, part in enumerate(parts):
            slot = get.slots[index]
            size_bytes = slot.size_bytes
            if slot.status == "hit" and size_bytes >= part.end:
                reads.append((part, index, Span(part.start, part.end, slot.chunk_bytes)))
            elif slot.status == "loading" and part.waits < LOADS_MAX:
                part.waits += 1
                part.nodes.append(node)
            elif slot.status == "loading":
                part.error = StillLoading(f"a stripe is on its way on {node}: ask again")
        scratch = [max(1, span.head_bytes + span.rest_bytes) for _, _, span in reads]
        async with kit.staging.places(scratch) as places:
            spans = [
                SpanRead(index, span, part.place, around)
                for (part, index, span), around in zip(reads, places, strict=True)
            ]
            corrupt = await get.read_spans(spans) if spans else set()
        valid = await get.release()
        for part, index, _ in reads:
            if index in corrupt:
                part.error = CorruptValue(f"a stripe on {node} is damaged")
            elif not valid:
                part.error = LeaseLost(f"the lease on {node} ran out before the read was over")
            else:
                part.is_done = True
