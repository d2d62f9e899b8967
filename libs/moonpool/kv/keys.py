"""Block keys: 16 bytes that name a block by its content and its whole prefix.

`key[0] = H(root || tokens[0])`, `key[i] = H(key[i-1] || tokens[i])`, after Mooncake
(FAST'25, section 3.2.1). H is SHA-256 cut to 128 bits; SHA-NI makes it faster here than
BLAKE3, and a collision would mean one prompt reading another's KV, so it is cryptographic.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import NewType

import numpy as np
from numpy.typing import NDArray

BlockKey = NewType("BlockKey", bytes)

KEY_BYTES = 16
_TOKEN_BYTES = 4  # little-endian int32


def isolation_salt(server_secret: bytes, tenant: str, cache_salt: str = "") -> bytes:
    """The salt that keeps one tenant from hitting or probing another's blocks. 32 bytes."""
    message = f"{len(tenant)}:{tenant}:{cache_salt}".encode()
    return hmac.new(server_secret, message, hashlib.sha256).digest()


def chain_root(fingerprint: bytes, salt: bytes) -> bytes:
    """What stands before the first block: the model's fingerprint and the isolation salt."""
    return hashlib.sha256(fingerprint + salt).digest()[:KEY_BYTES]


def block_keys(
    root: bytes, tokens: Sequence[int] | NDArray[np.int32], block_tokens: int
) -> list[BlockKey]:
    """Keys of all *full* blocks of `tokens`; the partial tail has none.

    Takes 0.45 ms for 128k tokens in blocks of 256: call it off the event loop for long prompts.
    """
    ids = np.ascontiguousarray(tokens, dtype="<i4")
    data = memoryview(ids.tobytes())
    step = block_tokens * _TOKEN_BYTES
    keys: list[BlockKey] = []
    parent = root
    for start in range(0, len(data) - step + 1, step):
        digest = hashlib.sha256(parent)
        digest.update(data[start : start + step])
        parent = digest.digest()[:KEY_BYTES]
        keys.append(BlockKey(parent))
    return keys


def next_key(parent: bytes, tokens: Sequence[int] | NDArray[np.int32]) -> BlockKey:
    """The key of one full block that follows `parent` (a key, or the chain's root)."""
    ids = np.ascontiguousarray(tokens, dtype="<i4")
    return BlockKey(hashlib.sha256(parent + ids.tobytes()).digest()[:KEY_BYTES])


def pack_keys(keys: Sequence[BlockKey]) -> bytes:
    """Keys side by side, as they travel in messages."""
    return b"".join(keys)


def unpack_keys(packed: bytes) -> list[BlockKey]:
    """The inverse of `pack_keys`. ValueError when the length is no multiple of 16."""
    if len(packed) % KEY_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of {KEY_BYTES}-byte keys")
    return [BlockKey(packed[i : i + KEY_BYTES]) for i in range(0, len(packed), KEY_BYTES)]
