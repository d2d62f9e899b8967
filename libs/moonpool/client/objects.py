"""Writing objects to one node: small ones in the message, others straight from where they lie."""

import asyncio
import os
from collections.abc import Sequence

from moonpool.client.blocks import KEYS_MAX
from moonpool.client.kit import Kit
from moonpool.client.line_puts import put_on_line
from moonpool.client.outcomes import Outcome
from moonpool.client.put_session import Piece
from moonpool.client.source import Source
from moonpool.kv import KEY_BYTES, BlockKey
from moonpool.kv.checksum import checksum_of
from moonpool.messages import MoonpoolError
from moonpool.messages.store import PutItem, WholeItem
from moonpool.transfer.base import Priority

INLINE_BYTES = 256 << 10  # summed at once: a thread costs more
PUT_TTL_S = 30.0


def whole_item(
    key: BlockKey, data: bytes, *, replace: bool = False, expected: int = 0
) -> WholeItem:
    return WholeItem(key, data, checksum_of(data), replace, expected)


async def put_small(kit: Kit, node: str, items: Sequence[WholeItem]) -> list[Outcome]:
    """One outcome per item; messages of bounded size. A node that fails gives its error to every
    item that it has not answered for."""
    out: list[Outcome] = []
    for part in _messages(items, kit.blocks.calls.message_max_bytes):
        try:
            out += await kit.blocks.calls.put_whole(node, kit.tenant, part)
        except MoonpoolError as error:
            kit.mesh.doubt(node, error)
            out += [error] * len(part)
    return out


async def put_large(kit: Kit, node: str, sources: Sequence[Source]) -> list[Outcome]:
    """One outcome per object; at most `KEYS_MAX` of them. A node that fails gives its error to
    all."""
    try:
        quick = await put_on_line(kit, node, sources)
        return await _put_large(kit, node, sources) if quick is None else quick
    except MoonpoolError as error:
        kit.mesh.doubt(node, error)
        return [error] * len(sources)


async def _put_large(kit: Kit, node: str, sources: Sequence[Source]) -> list[Outcome]:
    # What takes over a key is written under one that nobody knows.
    keys = [BlockKey(os.urandom(KEY_BYTES)) if s.takes else s.key for s in sources]
    wants = [
        PutItem(key, s.size_bytes, s.chunk_bytes) for key, s in zip(keys, sources, strict=True)
    ]
    opened, summed = await asyncio.gather(
        kit.blocks.open_put(node, kit.tenant, wants, ttl_s=PUT_TTL_S),
        _sums(sources),
        return_exceptions=True,
    )
    if isinstance(opened, BaseException):
        raise opened
    async with opened as put:
        if isinstance(summed, BaseException):
            raise summed
        wanted = put.wanted
        async with kit.staging.places([max(1, len(sources[i].tail)) for i in wanted]) as places:
            pieces = []
            for index, (region, at) in zip(wanted, places, strict=True):
                source = sources[index]
                region.view[at : at + len(source.tail)] = source.tail
                pieces.append(Piece(index, 0, source.body, source.body_bytes))
                tail = Piece(index, source.body_bytes, (region, at), len(source.tail))
                pieces.append(tail)
            await put.write_pieces(pieces, Priority.FOREGROUND)
        takes = {i: sources[i].key for i in wanted if sources[i].takes}
        return list(await put.finish({i: summed[i] for i in wanted}, takes))


async def _sums(sources: Sequence[Source]) -> list[bytes]:
    if sum(source.size_bytes for source in sources) <= INLINE_BYTES:
        return [source.checksums() for source in sources]
    return await asyncio.to_thread(lambda: [source.checksums() for source in sources])


def _messages(items: Sequence[WholeItem], max_bytes: int) -> list[list[WholeItem]]:
    groups: list[list[WholeItem]] = []
    room_bytes = 0
    for item in items:
        size_bytes = len(item.data) + 64  # key, checksum and what the codec adds
        if not groups or size_bytes > room_bytes or len(groups[-1]) == KEYS_MAX:
            groups.append([])
            room_bytes = max_bytes - 256
        groups[-1].append(item)
        room_bytes -= size_bytes
    return groups
