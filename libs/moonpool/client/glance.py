"""One question to a name's home: most often it says all that is to be known of a value."""

from collections.abc import Sequence

from moonpool.client.entries import Entry, peek
from moonpool.client.kit import Kit
from moonpool.client.together import all_of
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError

INLINE_BYTES = 512  # most manifests; of values no more than their tails are wanted

Seen = Entry | MoonpoolError | None
"""What a home has, why it does not say, or None: nothing."""


async def glance(kit: Kit, key: BlockKey) -> Seen:
    """Not counted as a use. Raises NoNodes."""
    (home,) = kit.mesh.home_of((key,))
    (seen,) = await _at(kit, home, (key,))
    return seen


async def glances(kit: Kit, keys: Sequence[BlockKey]) -> list[Seen]:
    """`glance` of each; one message per home."""
    if not keys:
        return []
    by_node: dict[str, list[int]] = {}
    for index, home in enumerate(kit.mesh.home_of(keys)):
        by_node.setdefault(home, []).append(index)
    parts = list(by_node.values())
    found = await all_of(
        [_at(kit, node, [keys[i] for i in part]) for node, part in by_node.items()]
    )
    out: list[Seen] = [None] * len(keys)
    for part, some in zip(parts, found, strict=True):
        for index, seen in zip(part, some, strict=True):
            out[index] = seen
    return out


async def _at(kit: Kit, node: str, keys: Sequence[BlockKey]) -> Sequence[Seen]:
    try:
        return await peek(kit, node, keys, INLINE_BYTES)
    except MoonpoolError as error:
        kit.mesh.doubt(node, error)
        return [error] * len(keys)
