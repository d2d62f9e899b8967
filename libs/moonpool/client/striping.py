"""Values that do not lie whole at their home: stripes first, then one manifest that makes them the
value. A reader sees the manifest of before or the new one, and parts of one version only."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.client.base import Place
from moonpool.client.entries import Entry, manifests_of, peek
from moonpool.client.errors import NoSpace, PutFailed, ValueTooLarge
from moonpool.client.kit import Kit
from moonpool.client.manifest import Manifest, new_manifest, pack, replace_places
from moonpool.client.objects import put_large, put_small, whole_item
from moonpool.client.outcomes import Outcome, outcome_error
from moonpool.client.parts import erase_parts, missing_parts
from moonpool.client.source import Source
from moonpool.client.watching import watch_copies
from moonpool.kv import BlockKey
from moonpool.kv.named import Kind, chunked, part_key, tail_of
from moonpool.messages import MoonpoolError

SESSION_PARTS = 4  # stripes per exchange
SESSIONS_MAX = 4  # exchanges at a time
TRIES_MAX = 5  # to be the one who replaces a name that others replace too
RETRY_S = 0.02
FULL_SHARE = 0.8  # of all dram: a larger value would push out its own beginning


@dataclass(frozen=True, slots=True)
class Large:
    """A value in memory, to be striped."""

    name: str
    key: BlockKey
    place: Place
    size_bytes: int
    replicas: int


async def put_striped(
    kit: Kit, value: Large, olds: Sequence[Entry], *, replaces: bool
) -> bool | MoonpoolError:
    """As `put` of one value. `olds`: what nodes had under the name a moment ago."""
    if olds and not replaces:
        return False
    if value.size_bytes > kit.stripe_bytes:
        capacity_bytes = await kit.mesh.capacity_bytes()
        if value.size_bytes > FULL_SHARE * capacity_bytes:
            return ValueTooLarge(f"{value.size_bytes} bytes; the nodes have {capacity_bytes}")
    order = await kit.mesh.order(value.key)
    manifest = new_manifest(value.size_bytes, kit.stripe_bytes, order, value.replicas)
    written = await write_parts(kit, value.key, manifest, value.place)
    if isinstance(written, MoonpoolError):
        return written
    outcome = await publish(kit, value, written, olds, replaces=replaces)
    if outcome is not True:
        await erase_parts(kit, [(value.key, written)])
    elif value.replicas > 1:
        by_node = written.by_node(value.key)
        holders = kit.mesh.homes(value.key)[: value.replicas]
        for node in holders:
            by_node.setdefault(node, []).append(value.key)
        await watch_copies(kit, by_node, len(holders))
    return outcome


async def write_parts(
    kit: Kit, key: BlockKey, manifest: Manifest, place: Place
) -> Manifest | MoonpoolError:
    """The manifest with the copies that were made, at least one of each stripe; or why not, and
    then nothing is left."""
    region, at = place
    sources = [
        part_source(manifest, key, index, (region, at + index * manifest.stripe_bytes))
        for index in range(len(manifest.places))
    ]
    by_node: dict[str, list[int]] = defaultdict(list)
    for index, nodes in enumerate(manifest.places):
        for node in nodes:
            by_node[node].append(index)
    done: dict[tuple[int, str], Outcome] = {}
    limit = asyncio.Semaphore(SESSIONS_MAX)

    async def write(node: str, some: Sequence[int]) -> None:
        async with limit:
            outcomes = await put_large(kit, node, [sources[i] for i in some])
        done.update({(i, node): outcome for i, outcome in zip(some, outcomes, strict=True)})

    async with asyncio.TaskGroup() as group:
        for node, indices in by_node.items():
            for start in range(0, len(indices), SESSION_PARTS):
                group.create_task(write(node, indices[start : start + SESSION_PARTS]))
    places = [
        [node for node in nodes if done[index, node] == "committed"]
        for index, nodes in enumerate(manifest.places)
    ]
    made = replace_places(manifest, places)
    error = _first_error(done, places)
    if error is None and len(places) > 1 and await missing_parts(kit, key, made):
        error = NoSpace("a value pushed out its own beginning", retry_after_s=1.0)
    if error is not None:
        await erase_parts(kit, [(key, made)])
        return error
    return made


async def publish(
    kit: Kit, value: Large, manifest: Manifest, olds: Sequence[Entry], *, replaces: bool
) -> bool | MoonpoolError:
    """Makes the manifest the name's entry at its home, then beside it; True, False when the name
    turned out to be taken, or why not. The parts of what it replaced go."""
    body = pack(manifest)
    data = body + tail_of(len(body), value.name.encode(), Kind.MANIFEST)
    homes = kit.mesh.homes(value.key)
    home, old = homes[0], next((e for e in olds if e.node == homes[0]), None)
    for attempt in range(TRIES_MAX):
        expected = old.slot.generation if old is not None else 0
        takes = replaces and old is not None
        item = whole_item(value.key, data, replace=takes, expected=expected)
        (outcome,) = await put_small(kit, home, [item])
        if outcome == "committed":
            old_parts = [(value.key, each) for each in manifests_of(olds)]
            await erase_parts(kit, old_parts, elsewhere=True)
            await _beside(kit, value, data, homes[1 : value.replicas])
            return True
        if outcome not in ("exists", "changed", "busy") or not replaces:
            return outcome_error(value.name, outcome)
        await asyncio.sleep(RETRY_S * 2**attempt)
        (old,) = await peek(kit, home, [value.key])
        olds = [*(e for e in olds if e.node != home), *([old] if old is not None else [])]
    return PutFailed(f"{value.name!r} is being replaced by others all the time")


async def _beside(kit: Kit, value: Large, data: bytes, nodes: Sequence[str]) -> None:
    """Further copies of the entry; best effort."""
    item = whole_item(value.key, data, replace=True)
    await asyncio.gather(*(put_small(kit, node, [item]) for node in nodes))


def part_source(manifest: Manifest, key: BlockKey, index: int, place: Place) -> Source:
    """One stripe of the value under `key`, whose bytes lie at `place`."""
    size_bytes = manifest.part_bytes(index)
    whole_bytes, chunk_bytes = chunked(size_bytes)
    tail = bytes(whole_bytes - size_bytes)
    return Source(part_key(key, manifest.version, index), place, size_bytes, tail, chunk_bytes)


def _first_error(
    done: dict[tuple[int, str], Outcome], places: Sequence[Sequence[str]]
) -> MoonpoolError | None:
    """Why a stripe has no copy at all."""
    for (index, _), outcome in done.items():
        if not places[index]:
            error = outcome_error("a stripe", outcome)
            return error if isinstance(error, MoonpoolError) else PutFailed("a stripe was there")
    return None
