"""Blocks: how they are named, laid out in bytes, and handed out.

Pure bookkeeping for anyone who touches KV blocks (gateway, conductor, instances, nodes).
It never moves bytes, reads a clock or talks to anybody.
"""

from moonpool.kv.fingerprint import Fingerprint, ModelIdentity
from moonpool.kv.foreign import foreign_root
from moonpool.kv.hint import NO_HINT, BlockHint
from moonpool.kv.keys import (
    KEY_BYTES,
    BlockKey,
    block_keys,
    chain_root,
    isolation_salt,
    next_key,
    pack_keys,
    unpack_keys,
)
from moonpool.kv.layout import BlockLayout
from moonpool.kv.pool import BlockPool, EvictionOrder
from moonpool.kv.prefix import PrefixIndex

__all__ = [
    "KEY_BYTES",
    "NO_HINT",
    "BlockHint",
    "BlockKey",
    "BlockLayout",
    "BlockPool",
    "EvictionOrder",
    "Fingerprint",
    "ModelIdentity",
    "PrefixIndex",
    "block_keys",
    "chain_root",
    "foreign_root",
    "isolation_salt",
    "next_key",
    "pack_keys",
    "unpack_keys",
]
