"""Putting values: small ones in a message to their home, middle ones whole, large ones striped."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from moonpool.bus import NoResponder
from moonpool.client.base import VALUE_MAX_BYTES, Place, Value
from moonpool.client.blocks import KEYS_MAX
from moonpool.client.borrowing import lent
from moonpool.client.entries import Entry, manifests_of, peek_all
from moonpool.client.errors import NoNodes, NotNoted, ValueTooLarge
from moonpool.client.kit import Kit
from moonpool.client.objects import put_large, put_small, whole_item
from moonpool.client.outcomes import Outcome, outcome_error
from moonpool.client.parts import erase, erase_parts, missing_parts
from moonpool.client.placement import first_node, rank_nodes
from moonpool.client.places import view_of
from moonpool.client.source import Source
from moonpool.client.striping import Large, put_striped
from moonpool.client.telling import tell_absent
from moonpool.client.together import all_of
from moonpool.client.watching import watch_copies
from moonpool.kv import BlockKey
from moonpool.kv.named import Kind, named_size, tail_of
from moonpool.messages import CallerError, MoonpoolError
from moonpool.messages.store import INLINE_MAX_BYTES

BATCH_BYTES = 64 << 20  # of values in one exchange with a node
NODES_TRIED_MAX = 3  # while nodes turn out to be gone
BUSY_TRIES_MAX = 6  # for a name that others put at the same time
BUSY_S = 0.02
REPLICAS_MAX = 16
STRIPED_MAX = 2  # values at a time

Result = bool | MoonpoolError


@dataclass(frozen=True, slots=True)
class Item:
    """A value to be put. Its bytes are where the caller has them."""

    name: str
    key: BlockKey
    view: memoryview
    place: Place | None = None  # where registered memory holds it already

    @property
    def size_bytes(self) -> int:
        return self.view.nbytes

    def tail(self) -> bytes:
        return tail_of(self.size_bytes, self.name.encode(), Kind.VALUE)

    @property
    def object_bytes(self) -> int:
        return named_size(self.size_bytes, self.name.encode())[0]


def as_item(kit: Kit, name: str, value: Value, place: Place | None = None) -> Item:
    """Raises CallerError when the value is no plain run of bytes."""
    return Item(name, kit.key(name), view_of(name, value), place)


class Writer:
    """Writes for one client."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    async def put(
        self, items: Sequence[Item], *, replaces: bool, replicas: int
    ) -> dict[str, Result]:
        """Per name True, False (it was taken) or why not. Raises NoNodes, CallerError."""
        if not 1 <= replicas <= REPLICAS_MAX:
            raise CallerError(f"{replicas} replicas; 1 to {REPLICAS_MAX} are possible")
        out: dict[str, Result] = {}
        fit: list[Item] = []
        for item in items:
            if item.size_bytes > VALUE_MAX_BYTES:
                text = f"{item.name!r} has {item.size_bytes} bytes; {VALUE_MAX_BYTES} are possible"
                out[item.name] = ValueTooLarge(text)
            else:
                fit.append(item)
        for attempt in range(BUSY_TRIES_MAX):
            out |= await self._put_and_tell(fit, replaces, replicas)
            fit = [item for item in fit if _is_worth_more(out[item.name], replaces)]
            if not fit:
                break
            await asyncio.sleep(BUSY_S * 2**attempt)
        return {item.name: out[item.name] for item in items}

    async def _put_and_tell(
        self, items: Sequence[Item], replaces: bool, replicas: int
    ) -> dict[str, Result]:
        """Nodes that were not reached hear of it later, from those that were."""
        began_s = time.monotonic()
        out = await self._put_somewhere(items, replaces, replicas)
        try:
            done = [item.key for item in items if out[item.name] is True]
            await tell_absent(self._kit, began_s, done)
        except NotNoted as error:
            return {name: error if said is True else said for name, said in out.items()}
        return out

    async def _put_somewhere(
        self, items: Sequence[Item], replaces: bool, replicas: int
    ) -> dict[str, Result]:
        """A home that turns out to be gone is not asked again."""
        out: dict[str, Result] = {}
        left = list(items)
        for attempt in range(NODES_TRIED_MAX):
            try:
                out |= await self._put_once(left, replaces, replicas)
            except NoNodes:
                if not attempt:
                    raise
                break
            left = [item for item in left if isinstance(out[item.name], NoResponder)]
            if not left:
                break
        return out

    async def _put_once(
        self, items: Sequence[Item], replaces: bool, replicas: int
    ) -> dict[str, Result]:
        out: dict[str, Result] = {}
        olds = await self._look(items, replaces)
        if not replaces:
            taken = [item for item in items if olds[item.key]]
            lost = [item for item in taken if await self._is_lost(item, olds[item.key])]
            out = {item.name: False for item in taken if item not in lost}
            if lost:
                out |= await self._put_once(lost, True, replicas)
            items = [item for item in items if item not in taken]
        small = [item for item in items if item.object_bytes <= INLINE_MAX_BYTES]
        others = [item for item in items if item.object_bytes > INLINE_MAX_BYTES]
        whole = [item for item in others if await self._lies_whole(item, replicas)]
        striped = [item for item in others if item not in whole]
        work: list[Awaitable[dict[str, Result]]] = []
        if small:
            work.append(self._put_small(small, replaces, replicas))
        if whole:
            work.append(self._put_whole(whole, replaces))
        if striped:
            work.append(self._put_striped(striped, olds, replaces, replicas))
        for part in await all_of(work):
            out |= part
        done = [item for item in items if out[item.name] is True and olds[item.key]]
        if done:
            await self._clear(done, olds, replicas, striped)
        return out

    async def _is_lost(self, item: Item, entries: Sequence[Entry]) -> bool:
        """Whether a name is taken by a value only that has lost some of its stripes."""
        manifests = manifests_of(entries)
        if len(manifests) < len(entries):
            return False
        lost = [await missing_parts(self._kit, item.key, manifest) for manifest in manifests]
        return all(lost)

    async def _look(self, items: Sequence[Item], replaces: bool) -> dict[BlockKey, list[Entry]]:
        """What nodes have under these names. Where there is one node only, and nothing is to be
        replaced, it is left to say itself that a name is taken."""
        keys = [item.key for item in items]
        nodes = self._kit.mesh.readable()
        if not replaces and len(nodes) == 1:
            return {key: [] for key in keys}
        found = await peek_all(self._kit, keys, nodes)
        return dict(zip(keys, found, strict=True))

    async def _lies_whole(self, item: Item, replicas: int) -> bool:
        """Whether its bytes go under its name at its home, with no manifest."""
        if item.object_bytes > self._kit.stripe_bytes or replicas > 1:
            return False
        order = await self._kit.mesh.order(item.key)
        return order[0] == first_node(item.key, order)

    async def _put_small(
        self, items: Sequence[Item], replaces: bool, replicas: int
    ) -> dict[str, Result]:
        out = await self._at_homes(items, lambda node, some: self._send_small(node, some, replaces))
        if replicas > 1:
            done = [item for item in items if out[item.name] is True]
            for rank in range(1, replicas):
                await self._at_homes(
                    done, lambda node, some: self._send_small(node, some, True), rank
                )
            by_node: dict[str, list[BlockKey]] = defaultdict(list)
            for item in done:
                for node in self._kit.mesh.homes(item.key)[:replicas]:
                    by_node[node].append(item.key)
            await watch_copies(self._kit, by_node, min(replicas, len(self._kit.mesh.writable())))
        return out

    async def _send_small(self, node: str, items: Sequence[Item], replaces: bool) -> list[Outcome]:
        wants = [
            whole_item(item.key, bytes(item.view) + item.tail(), replace=replaces) for item in items
        ]
        return await put_small(self._kit, node, wants)

    async def _put_whole(self, items: Sequence[Item], replaces: bool) -> dict[str, Result]:
        async def send(node: str, some: Sequence[Item]) -> list[Outcome]:
            out: list[Outcome] = []
            for part in _batches(some):
                async with AsyncExitStack() as stack:
                    sources = []
                    for item in part:
                        place = item.place or (
                            await stack.enter_async_context(lent(self._kit.transfer, item.view)),
                            0,
                        )
                        chunk_bytes = named_size(item.size_bytes, item.name.encode())[1]
                        sources.append(
                            Source(
                                item.key, place, item.size_bytes, item.tail(), chunk_bytes, replaces
                            )
                        )
                    out += await put_large(self._kit, node, sources)
            return out

        return await self._at_homes(items, send)

    async def _put_striped(
        self,
        items: Sequence[Item],
        olds: Mapping[BlockKey, list[Entry]],
        replaces: bool,
        replicas: int,
    ) -> dict[str, Result]:
        limit = asyncio.Semaphore(STRIPED_MAX)

        async def put(item: Item) -> Result:
            async with limit, AsyncExitStack() as stack:
                place = item.place or (
                    await stack.enter_async_context(lent(self._kit.transfer, item.view)),
                    0,
                )
                value = Large(item.name, item.key, place, item.size_bytes, replicas)
                try:
                    return await put_striped(self._kit, value, olds[item.key], replaces=replaces)
                except MoonpoolError as error:
                    return error

        results = await asyncio.gather(*map(put, items))
        return {item.name: result for item, result in zip(items, results, strict=True)}

    async def _at_homes(
        self,
        items: Iterable[Item],
        send: Callable[[str, Sequence[Item]], Awaitable[list[Outcome]]],
        rank: int = 0,
    ) -> dict[str, Result]:
        """Each item at its home, or at that which comes `rank` places after it, if any does."""
        by_node: dict[str, list[Item]] = defaultdict(list)
        nodes = self._kit.mesh.writable()
        for item in items:
            if not rank:
                by_node[first_node(item.key, nodes)].append(item)
            elif rank < len(nodes):
                by_node[rank_nodes(item.key, nodes)[rank]].append(item)
        outcomes = await all_of([send(node, some) for node, some in by_node.items()])
        return {
            item.name: outcome_error(item.name, outcome)
            for some, results in zip(by_node.values(), outcomes, strict=True)
            for item, outcome in zip(some, results, strict=True)
        }

    async def _clear(
        self,
        items: Sequence[Item],
        olds: Mapping[BlockKey, list[Entry]],
        replicas: int,
        striped: Sequence[Item],
    ) -> None:
        """Takes away what was replaced but lies elsewhere: older entries, and the stripes of what
        has none now."""
        by_node: dict[str, list[BlockKey]] = defaultdict(list)
        manifests = []
        for item in items:
            kept = self._kit.mesh.homes(item.key)[:replicas]
            for entry in olds[item.key]:
                if entry.node not in kept:
                    by_node[entry.node].append(item.key)
            if item not in striped:
                manifests += [(item.key, manifest) for manifest in manifests_of(olds[item.key])]
        await asyncio.gather(
            erase_parts(self._kit, manifests, elsewhere=True),
            *(erase(self._kit, node, keys) for node, keys in by_node.items()),
        )


def _is_worth_more(result: Result, replaces: bool) -> bool:
    """Others are at it, or its node has only just come back: to be tried again."""
    code = result.code if isinstance(result, MoonpoolError) else ""
    return code == "away" or (replaces and code == "busy")


def _batches(items: Sequence[Item]) -> list[list[Item]]:
    """Items in groups that one exchange carries."""
    groups: list[list[Item]] = []
    room_bytes = 0
    for item in items:
        if not groups or item.size_bytes > room_bytes or len(groups[-1]) == KEYS_MAX:
            groups.append([])
            room_bytes = BATCH_BYTES
        groups[-1].append(item)
        room_bytes -= item.size_bytes
    return groups
