"""A value whose bytes do not lie beside its name: stripes, each on one or more nodes. Pure.

The manifest is one small object under the value's key, so that replacing it replaces the value in
one step. Each version of a value has part keys of its own: parts of two versions cannot mix.
"""

import os
from collections.abc import Sequence

import msgspec

from moonpool.client.errors import CorruptValue
from moonpool.kv import BlockKey
from moonpool.kv.named import part_key

VERSION_BYTES = 16
STRIPE_BYTES = 16 << 20


class _Body(msgspec.Struct, frozen=True, array_like=True):
    version: bytes
    stripe_bytes: int
    nodes: list[str]
    places: list[list[int]]  # per stripe: indices into `nodes`


class Manifest(msgspec.Struct, frozen=True):
    size_bytes: int  # of the value
    version: bytes  # new for each put
    stripe_bytes: int  # of each stripe but the last
    places: list[list[str]]  # per stripe: nodes that hold it; at least one

    def part_keys(self, key: BlockKey) -> list[BlockKey]:
        """Keys of the stripes of the value under `key`."""
        return [part_key(key, self.version, index) for index in range(len(self.places))]

    def part_bytes(self, index: int) -> int:
        return min(self.stripe_bytes, self.size_bytes - index * self.stripe_bytes)

    def by_node(self, key: BlockKey) -> dict[str, list[BlockKey]]:
        """All copies of all stripes."""
        found: dict[str, list[BlockKey]] = {}
        for part, nodes in zip(self.part_keys(key), self.places, strict=True):
            for node in nodes:
                found.setdefault(node, []).append(part)
        return found


def new_manifest(size_bytes: int, stripe_bytes: int, order: Sequence[str], copies: int) -> Manifest:
    """Stripes laid over nodes in turn; each on `copies` of them, as far as there are so many."""
    stripes = max(1, -(-size_bytes // stripe_bytes))
    copies = min(copies, len(order))
    places = [
        [order[(index + copy) % len(order)] for copy in range(copies)] for index in range(stripes)
    ]
    return Manifest(size_bytes, os.urandom(VERSION_BYTES), stripe_bytes, places)


def replace_places(manifest: Manifest, places: list[list[str]]) -> Manifest:
    return Manifest(manifest.size_bytes, manifest.version, manifest.stripe_bytes, places)


def pack(manifest: Manifest) -> bytes:
    nodes = list(dict.fromkeys(node for place in manifest.places for node in place))
    index = {node: at for at, node in enumerate(nodes)}
    places = [[index[node] for node in place] for place in manifest.places]
    body = _Body(manifest.version, manifest.stripe_bytes, nodes, places)
    return manifest.size_bytes.to_bytes(8, "little") + msgspec.msgpack.encode(body)


def unpack(data: bytes | memoryview) -> Manifest:
    """Raises CorruptValue when it is none: it was verified, so its writer was broken."""
    try:
        size_bytes = int.from_bytes(data[:8], "little")
        body = msgspec.msgpack.decode(data[8:], type=_Body)
        places = [[body.nodes[at] for at in place] for place in body.places]
    except (msgspec.DecodeError, msgspec.ValidationError, IndexError) as error:
        raise CorruptValue(f"a manifest makes no sense: {error}") from error
    if body.stripe_bytes < 1 or len(places) != max(1, -(-size_bytes // body.stripe_bytes)):
        raise CorruptValue(f"a manifest of {len(places)} stripes for {size_bytes} bytes")
    if not all(places):
        raise CorruptValue("a manifest with a stripe that lies nowhere")
    return Manifest(size_bytes, body.version, body.stripe_bytes, places)
