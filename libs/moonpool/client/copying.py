"""Copies of values: where they are, more of them, fewer, elsewhere."""

import asyncio

from moonpool.client.base import Copies
from moonpool.client.borrowing import lent
from moonpool.client.entries import Entry
from moonpool.client.errors import LastCopy, NoSpace, PutFailed, UnknownNode
from moonpool.client.finding import located, put_manifest
from moonpool.client.keeper import Found, Keeper
from moonpool.client.kit import Kit
from moonpool.client.manifest import Manifest, new_manifest, replace_places
from moonpool.client.objects import put_large, put_small, whole_item
from moonpool.client.outcomes import outcome_error
from moonpool.client.parts import erase, erase_parts, read_parts
from moonpool.client.reader import Reader
from moonpool.client.striping import Large, part_source, publish, write_parts
from moonpool.client.wants import Want
from moonpool.messages import MoonpoolError


class Copier:
    """One client's. Bytes go through the client; the entry changes last, and only if nobody
    replaced the value meanwhile (PutFailed then)."""

    def __init__(self, kit: Kit, keeper: Keeper, reader: Reader) -> None:
        self._kit = kit
        self._keeper = keeper
        self._reader = reader

    async def copies(self, name: str) -> Copies | None:
        """None when the name is nowhere."""
        (found,) = await self._keeper.find([name])
        if not found.entries:
            return None
        manifest = found.manifest
        if manifest is not None:
            manifest = await located(self._kit, found.key, manifest)
            return Copies(manifest.size_bytes, found.nodes, [list(p) for p in manifest.places])
        size_bytes = (await self._keeper.sizes([name]))[name] or 0
        return Copies(size_bytes, found.nodes, [])

    async def add(self, name: str, node: str) -> bool:
        """Whether the name is there; then `node` holds all of it. Raises UnknownNode, NoSpace,
        PutFailed."""
        if node not in self._kit.mesh.writable():
            raise UnknownNode(f"no node {node!r} takes values now")
        (found,) = await self._keeper.find([name])
        if not found.entries:
            return False
        manifest = found.manifest
        if manifest is not None:
            await self._add_parts(found, manifest, node)
        elif node not in found.nodes:
            await self._add_value(found, node)
        return True

    async def drop(self, name: str, node: str) -> bool:
        """Whether `node` held any of it. Raises LastCopy."""
        (found,) = await self._keeper.find([name])
        manifest = found.manifest
        if manifest is None:
            if node not in found.nodes:
                return False
            if len(found.nodes) == 1:
                raise LastCopy(f"{name!r} is on {node} only")
            await erase(self._kit, node, [found.key])
            return True
        said = manifest
        manifest = await located(self._kit, found.key, said)
        if not any(node in nodes for nodes in [*said.places, *manifest.places]):
            return False
        places = [[each for each in nodes if each != node] for nodes in manifest.places]
        if not all(places):
            raise LastCopy(f"a stripe of {name!r} is on {node} only")
        await self._replace(found, replace_places(manifest, places))
        keys = [
            key
            for key, nodes in zip(manifest.part_keys(found.key), manifest.places, strict=True)
            if node in nodes
        ]
        if keys:
            await erase(self._kit, node, keys)
        return True

    async def move(self, name: str, source: str, target: str) -> bool:
        """`add` on one node and `drop` on the other; whether the name is there."""
        return await self.add(name, target) and (source == target or await self.drop(name, source))

    async def _add_value(self, found: Found, node: str) -> None:
        """A small value gets a second entry; a larger one a manifest that names both nodes."""
        entry = found.entries[0]
        if entry.is_whole:
            item = whole_item(found.key, entry.slot.data, replace=True)
            (outcome,) = await put_small(self._kit, node, [item])
            _require(outcome_error(found.name, outcome))
            return
        (read,) = await self._reader.read([Want(found.key, found.name)])
        if read.error is not None or read.value is None:
            raise read.error or PutFailed(f"{found.name!r} went away meanwhile")
        value = read.value
        async with lent(self._kit.transfer, memoryview(value)) as region:
            large = Large(found.name, found.key, (region, 0), len(value), 1)
            one = new_manifest(len(value), self._kit.stripe_bytes, [entry.node], 1)
            both = replace_places(one, [[entry.node, node] for _ in one.places])
            made = await write_parts(self._kit, found.key, both, large.place)
            if isinstance(made, MoonpoolError):
                raise made
            if not all(node in nodes for nodes in made.places):
                await erase_parts(self._kit, [(found.key, made)])
                raise NoSpace(f"{node} has no room for {found.name!r}", retry_after_s=1.0)
            published = await publish(self._kit, large, made, found.entries, replaces=True)
            if published is not True:
                await erase_parts(self._kit, [(found.key, made)])
            _require(published)
        home = self._kit.mesh.homes(found.key)[0]
        await asyncio.gather(
            *(erase(self._kit, each, [found.key]) for each in found.nodes if each != home)
        )

    async def _add_parts(self, found: Found, manifest: Manifest, node: str) -> None:
        """Stripe by stripe, each verified on its way."""
        manifest = await located(self._kit, found.key, manifest)
        added = []
        for index, nodes in enumerate(manifest.places):
            if node in nodes:
                continue
            size_bytes = manifest.part_bytes(index)
            low = index * manifest.stripe_bytes
            async with self._kit.staging.places([size_bytes]) as (place,):
                await read_parts(self._kit, found.key, manifest, low, low + size_bytes, place)
                source = part_source(manifest, found.key, index, place)
                (outcome,) = await put_large(self._kit, node, [source])
            added.append(source.key)
            if outcome not in ("committed", "exists"):
                await erase(self._kit, node, added)
                _require(outcome_error(found.name, outcome))
        places = [nodes if node in nodes else [*nodes, node] for nodes in manifest.places]
        try:
            await self._replace(found, replace_places(manifest, places))
        except MoonpoolError:
            await erase(self._kit, node, added)
            raise

    async def _replace(self, found: Found, manifest: Manifest) -> None:
        """Another manifest of the same version, at every node that has the entry: home first."""
        home = self._kit.mesh.homes(found.key)[0]
        for entry in sorted(found.entries, key=lambda each: each.node != home):
            _require(await self._replace_at(found, manifest, entry))

    async def _replace_at(
        self, found: Found, manifest: Manifest, entry: Entry
    ) -> bool | MoonpoolError:
        outcome = await put_manifest(self._kit, found.name, found.key, manifest, entry)
        return outcome_error(found.name, outcome)


def _require(outcome: bool | MoonpoolError) -> None:
    if isinstance(outcome, MoonpoolError):
        raise outcome
    if not outcome:
        raise PutFailed("the value was replaced meanwhile")
