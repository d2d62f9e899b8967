"""Keys of blocks that live in other engines (vLLM, say), known here only by their token ids.

Their bytes are of another layout and can never be read as ours, so their chains have a root of
their own kind: no key of ours equals one of theirs.
"""

import hashlib

from moonpool.kv.keys import KEY_BYTES


def foreign_root(model: str, block_tokens: int, salt: str = "") -> bytes:
    """The root of chains of `model` in blocks of `block_tokens`; `salt` keeps chains apart that the
    engine keeps apart (an adapter, a cache salt)."""
    text = f"moonpool foreign 1\n{len(model)}:{model}\n{block_tokens}\n{salt}"
    return hashlib.sha256(text.encode()).digest()[:KEY_BYTES]
