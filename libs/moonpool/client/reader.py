"""Reading values: a name's home first, then whoever has it; verified, and only then believed."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from moonpool.bus import NoResponder
from moonpool.client.blocks import KEYS_MAX
from moonpool.client.borrowing import fresh_bytes
from moonpool.client.entries import Entry, peek_all
from moonpool.client.errors import CorruptValue, LeaseLost, StillLoading
from moonpool.client.finding import mend
from moonpool.client.get_session import GetSession, SpanRead
from moonpool.client.kit import Kit
from moonpool.client.line_gets import get_on_line
from moonpool.client.parts import PartsLost, erase_parts, read_parts
from moonpool.client.spans import Span
from moonpool.client.together import all_of
from moonpool.client.wants import MISS, Read, Want, at_once
from moonpool.kv.named import TRAILER_BYTES
from moonpool.messages import MoonpoolError
from moonpool.messages.store import INLINE_MAX_BYTES

BATCH_BYTES = 64 << 20  # of values read together
LOOKS_MAX = 3  # at a name whose parts vanish while they are read: it is being replaced


class Reader:
    """Reads for one client."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    async def read(self, wants: Sequence[Want]) -> list[Read]:
        """One per want, never a manifest."""
        out = await self._look(wants)
        for _ in range(LOOKS_MAX):
            at = [i for i, read in enumerate(out) if read.manifest is not None]
            if not at:
                return out
            done = await all_of([self._from_parts(wants[i], out[i]) for i in at])
            again: dict[int, PartsLost] = {}
            for i, read in zip(at, done, strict=True):
                if isinstance(read, PartsLost):
                    again[i] = read
                else:
                    out[i] = read
            if again:
                looked = await self._look([wants[i] for i in again])
                for (i, lost), read in zip(again.items(), looked, strict=True):
                    out[i] = await self._settle(wants[i], out[i], read, lost)
        return [
            Read(error=StillLoading(f"{want.name!r} is being replaced all the time"))
            if read.manifest is not None
            else read
            for want, read in zip(wants, out, strict=True)
        ]

    async def _settle(self, want: Want, before: Read, now: Read, lost: PartsLost) -> Read:
        """A value whose parts are gone: replaced meanwhile (`now` differs), or lost for good, or
        with a node that may come back with them."""
        assert before.manifest is not None
        manifest, entry = before.manifest
        if now.manifest is None or now.manifest[0].version != manifest.version:
            return now
        if not lost.is_certain:
            return MISS
        (said,) = await self._kit.blocks.calls.remove(
            entry.node, self._kit.tenant, [want.key], generations=[entry.slot.generation]
        )
        if said in ("removed", "leased"):
            await erase_parts(self._kit, [(want.key, manifest)], elsewhere=True)
        return MISS

    async def _look(self, wants: Sequence[Want]) -> list[Read]:
        """From homes, and what they do not have from anybody else."""
        homes = self._kit.mesh.home_of([want.key for want in wants])
        out = await self._from_nodes(dict(enumerate(homes)), wants)
        reads = [out[i] for i in range(len(wants))]
        left = [i for i, read in enumerate(reads) if not read.is_settled]
        others = (
            [n for n in self._kit.mesh.readable() if any(homes[i] != n for i in left)]
            if left
            else []
        )
        if not others:
            return [_without_dead(read) for read in reads]
        try:
            found = await peek_all(self._kit, [wants[i].key for i in left], others)
        except MoonpoolError as error:  # somebody who may have them does not say
            for i in left:
                reads[i] = reads[i] if reads[i].error is not None else Read(error=error)
            return [_without_dead(read) for read in reads]
        nodes = {
            i: next(entry.node for entry in entries if entry.node != homes[i])
            for i, entries in zip(left, found, strict=True)
            if any(entry.node != homes[i] for entry in entries)
        }
        for i, read in (await self._from_nodes(nodes, wants)).items():
            if read.is_settled or reads[i].error is None:
                reads[i] = read
        return [_without_dead(read) for read in reads]

    async def _from_nodes(self, nodes: Mapping[int, str], wants: Sequence[Want]) -> dict[int, Read]:
        """Each want from its node; one message per node and `KEYS_MAX` names."""
        by_node: dict[str, list[int]] = defaultdict(list)
        for index, node in nodes.items():
            by_node[node].append(index)
        parts = [
            (node, some[start : start + KEYS_MAX])
            for node, some in by_node.items()
            for start in range(0, len(some), KEYS_MAX)
        ]
        reads = await all_of(
            [self._from_node(node, [wants[i] for i in part]) for node, part in parts]
        )
        return {
            i: read
            for (_, part), some in zip(parts, reads, strict=True)
            for i, read in zip(part, some, strict=True)
        }

    async def _from_node(self, node: str, wants: Sequence[Want]) -> list[Read]:
        """Whatever does not fit one answer, or is late from a lower tier, comes in turns."""
        out = [MISS] * len(wants)
        left = list(range(len(wants)))
        while left:
            try:
                some = await self._turn(node, [wants[i] for i in left])
            except MoonpoolError as error:
                self._kit.mesh.doubt(node, error)
                some = [Read(error=error)] * len(left)
            for index, read in zip(left, some, strict=True):
                out[index] = read
            late = [i for i in left if isinstance(out[i].error, StillLoading)]
            if len(late) == len(left):
                break
            left = late
        return out

    async def _turn(self, node: str, wants: Sequence[Want]) -> list[Read]:
        """Over a line, and what cannot be had there on the bus."""
        quick = await get_on_line(self._kit, node, wants)
        if quick is None:
            return await self._session(node, wants)
        left = [index for index, read in enumerate(quick) if read is None]
        rest = await self._session(node, [wants[i] for i in left]) if left else []
        late = dict(zip(left, rest, strict=True))
        return [late[i] if read is None else read for i, read in enumerate(quick)]

    async def _session(self, node: str, wants: Sequence[Want]) -> list[Read]:
        blocks = self._kit.blocks
        keys = [want.key for want in wants]
        async with await blocks.open_get(
            node,
            self._kit.tenant,
            keys,
            wait_s=blocks.wait_max_s,
            inline_bytes=INLINE_MAX_BYTES,
            tail_bytes=TRAILER_BYTES,
        ) as get:
            out = [at_once(node, get.slots[i], want) for i, want in enumerate(wants)]
            get.corrupt |= {i for i, read in enumerate(out) if read and read.is_damaged}
            left = [index for index, read in enumerate(out) if read is None]
            reads = [read or MISS for read in out]
            for part in _groups(get, left):
                for index, read in (await self._transfer(get, wants, part)).items():
                    reads[index] = read
            if not await get.release():
                late = Read(
                    error=LeaseLost(f"the lease on {node} ran out before the read was over")
                )
                for index in left:
                    reads[index] = late
            return reads

    async def _transfer(
        self, get: GetSession, wants: Sequence[Want], part: Sequence[int]
    ) -> dict[int, Read]:
        """Reads values that are larger than an answer holds."""
        kit, out = self._kit, dict[int, Read]()
        async with AsyncExitStack() as stack:
            spans, values = list[SpanRead](), dict[int, bytes]()
            for index in part:
                slot, want = get.slots[index], wants[index]
                trailer = Entry(get.node, slot).trailer
                if trailer is None:
                    out[index] = Read(error=CorruptValue(f"{want.name!r} is no value"))
                    continue
                try:
                    start, end = want.range_of(trailer.value_bytes)
                except MoonpoolError as error:
                    out[index] = Read(error=error)
                    continue
                span = Span(start, end, slot.chunk_bytes)
                place = want.into
                if place is None and end - start > 1:
                    value, region = await stack.enter_async_context(
                        fresh_bytes(kit.transfer, end - start)
                    )
                    values[index], place = value, (region, 0)
                around = await stack.enter_async_context(
                    kit.staging.places([max(1, span.head_bytes + span.rest_bytes + 1)])
                )
                region, at = around[0]
                beside = (region, at + span.head_bytes + span.rest_bytes)
                spans.append(SpanRead(index, span, place or beside, around[0]))
            size_bytes = sum(read.span.end - read.span.start for read in spans)
            async with kit.sources.reading(get.node, size_bytes):
                corrupt = await get.read_spans(spans) if spans else set()
            for read in spans:
                out[read.index] = _read_of(read, wants[read.index], values, corrupt)
        return out

    async def _from_parts(self, want: Want, found: Read) -> Read | PartsLost:
        """From where a manifest says, or where its parts are now."""
        assert found.manifest is not None
        manifest, entry = found.manifest
        try:
            start, end = want.range_of(manifest.size_bytes)
            if end == start:
                return Read(b"") if want.into is None else Read(size_bytes=0)
            if want.into is not None:
                in_place = await read_parts(self._kit, want.key, manifest, start, end, want.into)
                read = Read(size_bytes=end - start)
            else:
                async with fresh_bytes(self._kit.transfer, max(2, end - start)) as (value, region):
                    place = (region, 0)
                    in_place = await read_parts(self._kit, want.key, manifest, start, end, place)
                read = Read(value if end - start > 1 else value[:1])
            if not in_place:
                await mend(self._kit, want.name, want.key, manifest, entry)
            return read
        except PartsLost as error:
            return error
        except MoonpoolError as error:
            return Read(error=error)


def _read_of(read: SpanRead, want: Want, values: Mapping[int, bytes], corrupt: set[int]) -> Read:
    span = read.span
    if read.index in corrupt:
        return Read(error=CorruptValue(f"{want.name!r} is damaged"))
    if want.into is not None:
        return Read(size_bytes=span.end - span.start)
    if read.index in values:
        return Read(values[read.index])
    region, at = read.place  # a byte or none, read beside its chunk
    return Read(bytes(region.view[at : at + span.end - span.start]))


def _groups(get: GetSession, left: Sequence[int]) -> list[list[int]]:
    """Values in groups of bounded size."""
    groups: list[list[int]] = []
    room_bytes = 0
    for index in left:
        size_bytes = get.slots[index].size_bytes
        if not groups or size_bytes > room_bytes:
            groups.append([])
            room_bytes = BATCH_BYTES
        groups[-1].append(index)
        room_bytes -= size_bytes
    return groups


def _without_dead(read: Read) -> Read:
    """A node that is gone is as good as a miss: its bytes went with it."""
    return MISS if isinstance(read.error, NoResponder) else read
