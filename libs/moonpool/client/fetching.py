"""Getting values from one node: read, verified, and only then believed."""

from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.bus import NoResponder
from moonpool.client.blocks import BlockStore
from moonpool.client.errors import CorruptValue, LeaseLost, StillLoading
from moonpool.client.get_session import GetSession
from moonpool.client.staging import Staging
from moonpool.client.values import unframe
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError, TenantId
from moonpool.transfer.base import Priority

BATCH_BYTES = 64 << 20  # of values read together


@dataclass(frozen=True, slots=True)
class GetResult:
    """A value, or why there is none; neither is a miss."""

    value: bytes | None = None
    error: MoonpoolError | None = None

    @property
    def is_telling(self) -> bool:
        """More than a miss. A node that is gone is as good as one: its bytes went with it."""
        return self.value is not None or not isinstance(self.error, NoResponder | None)

    def unwrap(self) -> bytes | None:
        """The value or None. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


async def fetch_from(
    blocks: BlockStore, staging: Staging, node: str, tenant: TenantId, keys: Sequence[BlockKey]
) -> list[GetResult]:
    """One result per key. A node that fails gives its error to every key. What does not fit its
    memory together comes in turns."""
    if not keys:
        return []
    results = [GetResult()] * len(keys)
    left = list(range(len(keys)))
    while left:
        some = await _fetch(blocks, staging, node, tenant, [keys[i] for i in left])
        for index, result in zip(left, some, strict=True):
            results[index] = result
        late = [i for i in left if isinstance(results[i].error, StillLoading)]
        if len(late) == len(left):
            break
        left = late
    return results


async def _fetch(
    blocks: BlockStore, staging: Staging, node: str, tenant: TenantId, keys: Sequence[BlockKey]
) -> list[GetResult]:
    """One turn: what is there, or comes from a lower tier in time."""
    try:
        async with await blocks.open_get(node, tenant, keys, wait_s=blocks.wait_max_s) as get:
            results = [
                GetResult(error=StillLoading(f"{key.hex()} is on its way on {node}: ask again"))
                if slot.status == "loading"
                else GetResult()
                for key, slot in zip(get.keys, get.slots, strict=True)
            ]
            for part in _parts(get):
                for index, result in (await _read(get, staging, part)).items():
                    results[index] = result
            if not await get.finish():
                late = LeaseLost(f"the lease on {node} ran out before the read was over")
                results = [GetResult(error=late) if r.value is not None else r for r in results]
            return results
    except MoonpoolError as error:
        return [GetResult(error=error)] * len(keys)


async def _read(get: GetSession, staging: Staging, part: list[int]) -> dict[int, GetResult]:
    async with staging.places([get.slots[i].size_bytes for i in part]) as places:
        targets = dict(zip(part, places, strict=True))
        corrupt = await get.read_all(targets, Priority.FOREGROUND)
        out: dict[int, GetResult] = {}
        for index, (region, offset) in targets.items():
            if index in corrupt:
                text = f"{get.keys[index].hex()} on {get.node} is damaged"
                out[index] = GetResult(error=CorruptValue(text))
            else:
                view = region.view[offset : offset + get.slots[index].size_bytes]
                out[index] = GetResult(unframe(view))
        return out


def _parts(get: GetSession) -> list[list[int]]:
    """The hits, in groups of bounded size."""
    parts: list[list[int]] = []
    room_bytes = 0
    for index in get.hits:
        size_bytes = get.slots[index].size_bytes
        if not parts or size_bytes > room_bytes:
            parts.append([])
            room_bytes = BATCH_BYTES
        parts[-1].append(index)
        room_bytes -= size_bytes
    return parts
