"""Names of blocks for the audit stream: equal blocks get equal names, and no name leads back to a
key, so that nobody can probe the pool with them."""

import base64
import hashlib
from collections.abc import Iterable

NAME_BYTES = 8
_PURPOSE = b"moonpool audit"


def block_names(keys: Iterable[bytes]) -> str:
    """The names one after the other, base64."""
    names = (hashlib.blake2b(key, digest_size=NAME_BYTES, key=_PURPOSE).digest() for key in keys)
    return base64.b64encode(b"".join(names)).decode()
