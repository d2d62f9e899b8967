"""What nodes say of names: the entry that lies under a name's key, without reading the value."""

from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.client.kit import Kit
from moonpool.client.manifest import Manifest, unpack
from moonpool.kv import BlockKey
from moonpool.kv.checksum import checksum_of
from moonpool.kv.named import TRAILER_BYTES, Kind, Trailer, read_trailer
from moonpool.messages import MoonpoolError
from moonpool.messages.store import INLINE_MAX_BYTES, GetSlot

PEEK_MAX = 256  # keys per message


@dataclass(frozen=True, slots=True)
class Entry:
    """A name's object on one node. `slot` is "hit" or "loading"."""

    node: str
    slot: GetSlot

    @property
    def is_whole(self) -> bool:
        """Whether all of the object came with the answer."""
        return 0 < len(self.slot.data) == self.slot.size_bytes

    @property
    def is_sound(self) -> bool:
        """Of a whole one: whether it has its checksum."""
        return checksum_of(self.slot.data) == self.slot.checksums

    @property
    def trailer(self) -> Trailer | None:
        """None while it is loading, or had no room in the answer; and of what is no value."""
        return read_trailer(self.slot.data, self.slot.size_bytes)

    @property
    def may_be_manifest(self) -> bool:
        """Of one whose bytes are not here."""
        return self.slot.size_bytes <= INLINE_MAX_BYTES and not self.is_whole

    @property
    def is_value(self) -> bool:
        """Whether it is known to be a value itself, and no manifest."""
        trailer = self.trailer
        return trailer is not None and trailer.kind is Kind.VALUE

    def manifest(self) -> Manifest | None:
        """None when the value lies here itself. Raises CorruptValue."""
        trailer = self.trailer
        if trailer is None or trailer.kind is not Kind.MANIFEST or not self.is_whole:
            return None
        return unpack(memoryview(self.slot.data)[: trailer.value_bytes])


async def peek(
    kit: Kit, node: str, keys: Sequence[BlockKey], inline_bytes: int = INLINE_MAX_BYTES
) -> list[Entry | None]:
    """What one node has under these keys, not counted as a use. `inline_bytes`: objects up to it
    come whole."""
    found: list[Entry | None] = [None] * len(keys)
    left = list(range(len(keys)))
    while left:
        some, rest = left[:PEEK_MAX], left[PEEK_MAX:]
        reply = await kit.blocks.calls.get_start(
            node,
            kit.tenant,
            [keys[i] for i in some],
            0.0,
            inline_bytes=inline_bytes,
            tail_bytes=TRAILER_BYTES,
        )
        again = []
        for index, slot in zip(some, reply.slots, strict=True):
            found[index] = Entry(node, slot) if slot.status != "miss" else None
            if slot.status == "hit" and not slot.data:
                again.append(index)  # no room in this answer
        left = (again if len(again) < len(some) else []) + rest
    return found


async def peek_all(
    kit: Kit, keys: Sequence[BlockKey], nodes: Sequence[str] | None = None
) -> list[list[Entry]]:
    """Per key what the nodes have, which are all that may be read unless given; one message per
    node. A node that is gone has nothing. Raises what any other node raised."""
    if not keys:
        return []
    answers = await kit.mesh.ask_all(lambda node: peek(kit, node, keys), nodes)
    return [
        [entry for found in answers.values() if (entry := found[index]) is not None]
        for index in range(len(keys))
    ]


def manifests_of(entries: Sequence[Entry]) -> list[Manifest]:
    """Those that can be understood, in order."""
    found: list[Manifest] = []
    for entry in entries:
        try:
            manifest = entry.manifest()
        except MoonpoolError:
            continue
        if manifest is not None:
            found.append(manifest)
    return found
