"""What other programs import to keep bytes in the pool.

`StoreClient` for any values by name; `BlockStore` for KV blocks, layer by layer. Called by
applications and by whoever moves blocks; it never decides who stays in a node, and trusts no byte
that it has not verified.
"""

from moonpool.client.blocks import BlockStore
from moonpool.client.errors import (
    CorruptValue,
    LeaseLost,
    NoNodes,
    NoSpace,
    PutFailed,
    SessionOver,
    StillLoading,
    ValueTooLarge,
)
from moonpool.client.fetching import GetResult
from moonpool.client.get_session import GetSession
from moonpool.client.put_session import PutSession
from moonpool.client.store_client import StoreClient

__all__ = [
    "BlockStore",
    "CorruptValue",
    "GetResult",
    "GetSession",
    "LeaseLost",
    "NoNodes",
    "NoSpace",
    "PutFailed",
    "PutSession",
    "SessionOver",
    "StillLoading",
    "StoreClient",
    "ValueTooLarge",
]
