"""Putting values on one node."""

import asyncio
from collections.abc import Sequence

from moonpool.client.blocks import BlockStore
from moonpool.client.errors import NoSpace, PutFailed, ValueTooLarge
from moonpool.client.put_session import Place, PutSession
from moonpool.client.staging import Staging
from moonpool.client.values import frame_into, framed_sizes
from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import MoonpoolError, TenantId
from moonpool.messages.store import PutItem
from moonpool.transfer.base import Priority

Item = tuple[BlockKey, bytes | bytearray | memoryview]
Outcome = str | MoonpoolError  # what became of one value

INLINE_BYTES = 256 << 10  # copied and summed at once: a thread costs more


async def send_to(
    blocks: BlockStore, staging: Staging, node: str, tenant: TenantId, items: Sequence[Item]
) -> list[Outcome]:
    """One outcome per item. A node that fails gives its error to every item of the same chunks."""
    by_chunk: dict[int, list[int]] = {}
    for index, (_, value) in enumerate(items):
        by_chunk.setdefault(framed_sizes(memoryview(value).nbytes)[1], []).append(index)
    out: list[Outcome] = ["abandoned"] * len(items)
    for indices in by_chunk.values():
        try:
            results = await _send(blocks, staging, node, tenant, [items[i] for i in indices])
        except MoonpoolError as error:
            results = [error] * len(indices)
        for index, result in zip(indices, results, strict=True):
            out[index] = result
    return out


def outcome_error(name: str | bytes, outcome: Outcome) -> bool | MoonpoolError:
    """True: stored. False: it was there before. Else why not."""
    match outcome:
        case MoonpoolError() if outcome.code == "object_too_large":
            return ValueTooLarge(outcome.message)
        case MoonpoolError():
            return outcome
        case "committed":
            return True
        case "exists":
            return False
        case "no_space":
            return NoSpace(f"no room for {name!r} on its node", retry_after_s=1.0)
        case "busy":
            return NoSpace(f"another put of {name!r} runs", code="busy", retry_after_s=1.0)
    return PutFailed(f"the node did not take {name!r}: {outcome}")


async def _send(
    blocks: BlockStore, staging: Staging, node: str, tenant: TenantId, items: Sequence[Item]
) -> list[Outcome]:
    """Items of one chunk size."""
    sizes = [framed_sizes(memoryview(value).nbytes) for _, value in items]
    wants = [
        PutItem(key, size, chunk) for (key, _), (size, chunk) in zip(items, sizes, strict=True)
    ]
    async with await blocks.open_put(node, tenant, wants) as put:
        wanted = put.wanted
        async with staging.places([sizes[i][0] for i in wanted]) as places:
            sources = dict(zip(wanted, places, strict=True))

            def prepare() -> dict[int, bytes]:
                return {i: _prepare(items[i], sizes[i], place) for i, place in sources.items()}

            small = sum(sizes[i][0] for i in wanted) <= INLINE_BYTES
            sums = prepare() if small else await asyncio.to_thread(prepare)
            await _write(put, sources, sizes)
            return list(await put.finish(sums))


def _prepare(item: Item, sizes: tuple[int, int], place: Place) -> bytes:
    region, offset = place
    view = region.view[offset : offset + sizes[0]]
    frame_into(view, item[1])
    return chunk_checksums(view, sizes[1])


async def _write(
    put: PutSession, sources: dict[int, Place], sizes: Sequence[tuple[int, int]]
) -> None:
    by_chunks: dict[int, dict[int, Place]] = {}
    for index, place in sources.items():
        by_chunks.setdefault(sizes[index][0] // sizes[index][1], {})[index] = place
    for chunks, some in by_chunks.items():
        await put.write_chunks(0, chunks, some, Priority.FOREGROUND)
