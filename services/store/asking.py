"""What makes no sense in a request, before anything is changed for it. Pure."""

import math

from moonpool.kv import KEY_BYTES
from moonpool.messages.store import PutItem
from services.store.errors import BadRequest, ObjectTooLarge

REPLICAS_MAX = 16


def check_item(item: PutItem, bytes_total: int) -> None:
    """One object to be stored in a tier of that size. Raises BadRequest, ObjectTooLarge."""
    if len(item.key) != KEY_BYTES:
        raise BadRequest(f"a key has {KEY_BYTES} bytes, not {len(item.key)}")
    if item.size_bytes < 1 or item.chunk_bytes < 1 or item.size_bytes % item.chunk_bytes:
        raise BadRequest(f"{item.size_bytes} bytes are not whole chunks of {item.chunk_bytes}")
    if item.size_bytes > bytes_total:
        raise ObjectTooLarge(item.size_bytes, bytes_total)


def check_extent(seconds: float, keys: int, keys_max: int) -> None:
    """Raises BadRequest."""
    if not 0 <= seconds < math.inf:
        raise BadRequest(f"{seconds} seconds make no sense")
    if keys > keys_max:
        raise BadRequest(f"{keys} keys in one message; at most {keys_max}")


def check_replicas(replicas: int) -> None:
    """Raises BadRequest."""
    if not 1 <= replicas <= REPLICAS_MAX:
        raise BadRequest(f"{replicas} replicas; from 1 to {REPLICAS_MAX} are possible")
