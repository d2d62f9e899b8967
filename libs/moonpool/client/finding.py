"""Stripes that are not where their manifest says: a node that left has given them to others, or
others have seen to it that there are copies enough."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from moonpool.bus import NoResponder
from moonpool.client.entries import Entry
from moonpool.client.kit import Kit
from moonpool.client.manifest import Manifest, pack, replace_places
from moonpool.client.objects import put_small, whole_item
from moonpool.kv import BlockKey
from moonpool.kv.named import Kind, tail_of
from moonpool.messages import MoonpoolError


@dataclass(frozen=True, slots=True)
class Sighting:
    """What all nodes said of some keys."""

    by_key: dict[BlockKey, list[str]]  # nodes that have it
    silent: frozenset[str]  # nodes that may have some and do not say


async def look_for(kit: Kit, keys: Sequence[BlockKey], but: Collection[str] = ()) -> Sighting:
    """Asks all nodes `but` those; one message per node. One that is gone has nothing; one that has
    not answered before is not asked again before it is heard."""
    others = [node for node in kit.mesh.everyone() if node not in but]
    silent = {node for node in others if kit.mesh.is_silent(node)}

    async def look(node: str) -> list[bool]:
        try:
            return await kit.blocks.exist(node, kit.tenant, keys)
        except MoonpoolError as error:
            kit.mesh.doubt(node, error)
            if not isinstance(error, NoResponder):
                silent.add(node)
            return [False] * len(keys)

    asked = [node for node in others if node not in silent]
    answers = await asyncio.gather(*map(look, asked))
    by_key = {
        key: [node for node, found in zip(asked, answers, strict=True) if found[at]]
        for at, key in enumerate(keys)
    }
    return Sighting(by_key, frozenset(silent))


async def located(kit: Kit, key: BlockKey, manifest: Manifest) -> Manifest:
    """The same value with its stripes where they are now. What is nowhere stays where it was said
    to be, and so does what a silent node may have."""
    seen = await look_for(kit, manifest.part_keys(key))
    places = []
    for part, said in zip(manifest.part_keys(key), manifest.places, strict=True):
        having = seen.by_key[part]
        kept = [node for node in said if node in having or node in seen.silent]
        now = [*kept, *(node for node in having if node not in said)]
        places.append(now if having else list(said))
    return replace_places(manifest, places)


async def mend(kit: Kit, name: str, key: BlockKey, manifest: Manifest, entry: Entry) -> None:
    """Writes down where the stripes are, unless the entry has changed since it was read. Best
    effort: whoever reads it next looks for them too."""
    now = await located(kit, key, manifest)
    if now.places != manifest.places:
        await put_manifest(kit, name, key, now, entry)


async def put_manifest(
    kit: Kit, name: str, key: BlockKey, manifest: Manifest, entry: Entry
) -> str | MoonpoolError:
    """Puts a manifest in place of an entry that was read before, and of no other."""
    body = pack(manifest)
    data = body + tail_of(len(body), name.encode(), Kind.MANIFEST)
    item = whole_item(key, data, replace=True, expected=entry.slot.generation)
    (outcome,) = await put_small(kit, entry.node, [item])
    return outcome
