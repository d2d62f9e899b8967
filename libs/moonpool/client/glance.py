"""One question to each name's home: most often it says all that is to be known of a value."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moonpool.bus import NoResponder
from moonpool.client.entries import Entry, peek
from moonpool.client.kit import Kit
from moonpool.client.together import all_of
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError

INLINE_BYTES = 512  # most manifests; of values no more than their tails are wanted


@dataclass(slots=True)
class Glance:
    """What homes have, by index of the key."""

    entries: dict[int, Entry] = field(default_factory=dict)  # those that tell what they are
    errors: dict[int, MoonpoolError] = field(default_factory=dict)  # homes that do not say


async def glance(kit: Kit, keys: Sequence[BlockKey]) -> Glance:
    """One message per home, not counted as a use. A home that is gone has nothing. Raises
    NoNodes."""
    if not keys:
        return Glance()
    by_node: dict[str, list[int]] = {}
    for index, home in enumerate(kit.mesh.home_of(keys)):
        by_node.setdefault(home, []).append(index)
    out = Glance()

    async def ask(node: str, part: Sequence[int]) -> None:
        try:
            found = await peek(kit, node, [keys[i] for i in part], INLINE_BYTES)
        except MoonpoolError as error:
            kit.mesh.doubt(node, error)
            if not isinstance(error, NoResponder):
                out.errors.update(dict.fromkeys(part, error))
            return
        for index, entry in zip(part, found, strict=True):
            if entry is not None and entry.tells_kind:
                out.entries[index] = entry

    await all_of([ask(node, part) for node, part in by_node.items()])
    return out
