"""What is asked about values without reading them: whether, how large, where, and how long."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from moonpool.bus import NoResponder
from moonpool.client.base import PIN_KINDS
from moonpool.client.entries import Entry, manifests_of, peek_all
from moonpool.client.errors import NoNodes
from moonpool.client.finding import look_for
from moonpool.client.glance import Seen, glance, glances
from moonpool.client.kit import Kit
from moonpool.client.manifest import Manifest
from moonpool.client.parts import erase_parts, missing_parts
from moonpool.client.pinning import Pinning
from moonpool.client.reader import Reader
from moonpool.client.telling import tell_absent
from moonpool.client.together import all_of
from moonpool.client.wants import Want
from moonpool.kv import BlockKey
from moonpool.messages import CallerError, MoonpoolError
from moonpool.messages.store import ListedName, ListReply

PAGE = 1000
KEYS_MAX = 4096  # per message that only names keys


@dataclass(frozen=True, slots=True)
class Found:
    """A name, and what nodes have under its key: the home's word first, which is what counts."""

    name: str
    key: BlockKey
    entries: list[Entry]

    @property
    def manifest(self) -> Manifest | None:
        """None when the value lies whole under its name."""
        return next(iter(manifests_of(self.entries[:1])), None)

    @property
    def nodes(self) -> list[str]:
        return [entry.node for entry in self.entries]


class Keeper:
    """Asks and tells all nodes; one message per node and a second one for striped values."""

    def __init__(self, kit: Kit, reader: Reader) -> None:
        self._kit = kit
        self._reader = reader

    async def find(self, names: Sequence[str]) -> list[Found]:
        """Entries that may be manifests but lie in a lower tier are fetched first."""
        keys = [self._kit.key(name) for name in names]
        found = await peek_all(self._kit, keys)
        dim = [i for i, entries in enumerate(found) if _is_dim(entries)]
        if dim:
            await self._reader.read([Want(keys[i], names[i], 0, 0) for i in dim])
            for i, entries in zip(
                dim, await peek_all(self._kit, [keys[i] for i in dim]), strict=True
            ):
                found[i] = entries
        return [
            Found(name, key, self._by_rank(key, entries))
            for name, key, entries in zip(names, keys, found, strict=True)
        ]

    def _by_rank(self, key: BlockKey, entries: list[Entry]) -> list[Entry]:
        homes = self._kit.mesh.homes(key)
        ranks = {node: rank for rank, node in enumerate(homes)}
        return sorted(entries, key=lambda entry: ranks.get(entry.node, len(homes)))

    async def has(self, name: str) -> bool:
        """`exist` of one, which is mostly one short question."""
        key = self._kit.key(name)
        seen = await glance(self._kit, key)
        if isinstance(seen, Entry) and seen.is_value:
            return True
        return (await self._exist([name], [seen]))[name]

    async def exist(self, names: Sequence[str]) -> dict[str, bool]:
        """Homes are asked first, and all others only for what they do not have."""
        return await self._exist(names, await glances(self._kit, list(map(self._kit.key, names))))

    async def _exist(self, names: Sequence[str], seen: Sequence[Seen]) -> dict[str, bool]:
        async def is_there(found: Found) -> bool:
            manifest = found.manifest
            return manifest is None or not await missing_parts(self._kit, found.key, manifest)

        found = await self._found(names, seen)
        some = [each for each in found if each.entries]
        there = await all_of([is_there(each) for each in some])
        return dict.fromkeys(names, False) | {
            each.name: is_there for each, is_there in zip(some, there, strict=True)
        }

    async def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """None for those that are nowhere. As `exist`."""
        seen = await glances(self._kit, list(map(self._kit.key, names)))
        found = await self._found(names, seen)
        out = {each.name: _size_of(each) for each in found}
        unknown = [each for each in found if each.entries and out[each.name] is None]
        # In a lower tier as a whole: its tail is on its way up with it.
        await self._reader.read([Want(each.key, each.name, 0, 0) for each in unknown])
        for each in await self.find([each.name for each in unknown]):
            out[each.name] = _size_of(each)
        return out

    async def _found(self, names: Sequence[str], seen: Sequence[Seen]) -> list[Found]:
        """As `find`, where the home's word does if it is clear. Raises what a home did not say, if
        nobody else has it."""
        out, left = list[Found](), list[int]()
        for index, (name, entry) in enumerate(zip(names, seen, strict=True)):
            entries = [entry] if isinstance(entry, Entry) and _is_clear(entry) else []
            out.append(Found(name, self._kit.key(name), entries))
            if not entries:
                left.append(index)
        silent = [e for e in seen if _is_silence(e)]
        if not left or (all(seen[i] is None for i in left) and self._kit.mesh.is_one()):
            return out
        try:
            found = await self.find([names[i] for i in left])
        except NoNodes:
            if silent:
                raise silent[0] from None
            raise
        for index, each in zip(left, found, strict=True):
            error = seen[index]
            if _is_silence(error) and not each.entries:
                raise error
            out[index] = each
        return out

    async def remove(self, names: Sequence[str]) -> dict[str, bool]:
        """As `_remove_all`; nodes that are not reached hear of it when they are back. Raises
        NotNoted."""
        began_s = time.monotonic()
        out = await self._remove_all(names)
        await tell_absent(self._kit, began_s, [self._kit.key(name) for name in names])
        return out

    async def remove_prefix(self, prefix: str) -> int:
        """As `remove`, of all names that begin so; how many."""
        began_s, removed = time.monotonic(), 0
        names = [each.name async for each in self.names(prefix)]
        for start in range(0, len(names), PAGE):
            removed += sum((await self.remove(names[start : start + PAGE])).values())
        await tell_absent(self._kit, began_s, prefix=prefix)
        return removed

    async def _remove_all(self, names: Sequence[str]) -> dict[str, bool]:
        """Entries and all stripes. Whether each was there; pinned hard it stays, all of it. All
        nodes hear of it: one may have copies in a tier that it cannot look into yet."""
        found = await self.find(names)
        own = [each.key for each in found]
        gone = await self._remove(dict.fromkeys(self._kit.mesh.readable(), own))
        parts = [
            (each.key, manifest)
            for each in found
            if each.key in gone
            for manifest in manifests_of(each.entries)
        ]
        await erase_parts(self._kit, parts, elsewhere=True)
        return {each.name: each.key in gone for each in found}

    async def pin(self, names: Sequence[str], kind: str, ttl_s: float) -> dict[str, bool]:
        if kind not in PIN_KINDS:
            raise CallerError(f"a pin is one of {', '.join(PIN_KINDS)}, not {kind!r}")
        pinning = Pinning(self._kit, kind, ttl_s)
        wants, done = dict[str, list[BlockKey]](), set[BlockKey]()
        try:
            await self._tell(names, pinning.ask, ("pinned", "unpinned"), wants, done)
        except MoonpoolError:
            await pinning.take_back({key for keys in wants.values() for key in keys})
            raise
        out = _all_done(wants, done)
        await pinning.take_back({key for name in out if not out[name] for key in wants[name]})
        return out

    async def secure(self, names: Sequence[str]) -> dict[str, bool]:
        """Whether all of a value lies in lower tiers, or is copied there now and in time."""
        kit = self._kit

        async def ask(node: str, keys: Sequence[BlockKey]) -> list[str]:
            return await kit.blocks.calls.secure(node, kit.tenant, keys, kit.blocks.wait_max_s)

        wants, done = dict[str, list[BlockKey]](), set[BlockKey]()
        await self._tell(names, ask, ("durable",), wants, done)
        return _all_done(wants, done)

    async def _tell(
        self,
        names: Sequence[str],
        ask: Callable[[str, Sequence[BlockKey]], Awaitable[list[str]]],
        good: Sequence[str],
        wants: dict[str, list[BlockKey]],
        done: set[BlockKey],
    ) -> None:
        """Asks every node that holds something of these values. Fills in per name which keys make
        it up, and of all keys those that are well on some node."""
        found = await self.find(names)
        by_node: dict[str, list[BlockKey]] = defaultdict(list)
        for each in found:
            manifest = each.manifest
            wants[each.name] = [each.key] if each.entries else []
            for node in each.nodes:
                by_node[node].append(each.key)
            if manifest is not None:
                wants[each.name] += manifest.part_keys(each.key)
                for node, keys in manifest.by_node(each.key).items():
                    by_node[node] += keys
        said: dict[BlockKey, set[str]] = defaultdict(set)

        async def tell_all(by_node: dict[str, list[BlockKey]]) -> None:
            alive = {n: k for n, k in by_node.items() if n in self._kit.mesh.readable()}

            async def tell(node: str) -> None:
                for keys in _slices(alive[node]):
                    for key, result in zip(keys, await ask(node, keys), strict=True):
                        said[key].add(result)

            await self._kit.mesh.ask_all(tell, list(alive))

        await tell_all(by_node)
        stray = [key for keys in wants.values() for key in keys if said[key] <= {"miss"}]
        if stray:
            await tell_all(await self._elsewhere(stray))
        done.update(key for key, results in said.items() if not results.isdisjoint(good))

    async def _elsewhere(self, keys: Sequence[BlockKey]) -> dict[str, list[BlockKey]]:
        """Nodes that have what is not where it should be."""
        by_node: dict[str, list[BlockKey]] = defaultdict(list)
        for key, nodes in (await look_for(self._kit, keys)).by_key.items():
            for node in nodes:
                by_node[node].append(key)
        return by_node

    async def names(self, prefix: str) -> AsyncIterator[ListedName]:
        """Own names over all nodes, in order, each once."""
        after = ""
        while True:
            pages = (await self._pages(prefix, after)).values()
            names = {each.name: each for page in pages for each in page.names}
            # Beyond the last name of a page that has more, another node's names are not complete.
            full = [page.names[-1].name for page in pages if page.more]
            until = min(full) if full else None
            for name in sorted(names):
                if until is None or name <= until:
                    yield names[name]
            if until is None:
                return
            after = until

    async def wipe(self) -> int:
        calls, tenant = self._kit.blocks.calls, self._kit.tenant
        began_s = time.monotonic()
        removed = await self._kit.mesh.ask_all(lambda node: calls.wipe(node, tenant))
        await tell_absent(self._kit, began_s, everything=True)
        return sum(removed.values())

    async def _pages(self, prefix: str, after: str) -> dict[str, ListReply]:
        calls, tenant = self._kit.blocks.calls, self._kit.tenant
        return await self._kit.mesh.ask_all(
            lambda node: calls.list_names(node, tenant, prefix, after, PAGE)
        )

    async def _remove(self, by_node: dict[str, list[BlockKey]]) -> set[BlockKey]:
        """Keys that were there and are gone."""
        gone: set[BlockKey] = set()

        async def tell(node: str) -> None:
            for keys in _slices(by_node[node]):
                results = await self._kit.blocks.calls.remove(node, self._kit.tenant, keys)
                pairs = zip(keys, results, strict=True)
                gone.update(key for key, result in pairs if result in ("removed", "leased"))

        await self._kit.mesh.ask_all(tell, list(by_node))
        return gone


def _size_of(found: Found) -> int | None:
    """Bytes of the value, as far as somebody has told."""
    if found.manifest is not None:
        return found.manifest.size_bytes
    trailers = [entry.trailer for entry in found.entries if entry.is_value]
    return next((trailer.value_bytes for trailer in trailers if trailer is not None), None)


def _all_done(wants: Mapping[str, Sequence[BlockKey]], done: set[BlockKey]) -> dict[str, bool]:
    return {name: bool(keys) and done.issuperset(keys) for name, keys in wants.items()}


def _is_silence(seen: Seen) -> TypeGuard[MoonpoolError]:
    """A node that is gone has nothing; any other that does not say may have it."""
    return isinstance(seen, MoonpoolError) and not isinstance(seen, NoResponder)


def _is_clear(entry: Entry) -> bool:
    return entry.is_value or bool(manifests_of([entry]))


def _is_dim(entries: Sequence[Entry]) -> bool:
    """Whether one must look closer to know if it is a manifest."""
    return bool(entries) and all(entry.may_be_manifest for entry in entries)


def _slices(keys: Sequence[BlockKey]) -> list[Sequence[BlockKey]]:
    return [keys[start : start + KEYS_MAX] for start in range(0, len(keys), KEYS_MAX)]
