"""What other programs import to keep bytes in the pool.

`StoreClient` for any values by name, `SyncStoreClient` for programs without an event loop,
`MemoryStore` for tests without a mesh; `BlockStore` for KV blocks, layer by layer. Called by
applications and by whoever moves blocks; it never decides who stays in a node, and trusts no byte
that it has not verified.
"""

from moonpool.client.base import Copies, GetResult, Store
from moonpool.client.blocks import BlockStore
from moonpool.client.errors import (
    BadName,
    BadRange,
    CorruptValue,
    DeadlineOver,
    LastCopy,
    LeaseLost,
    NoNodes,
    NoSpace,
    PutFailed,
    SessionOver,
    StillLoading,
    TargetTooSmall,
    UnknownNode,
    ValueTooLarge,
)
from moonpool.client.get_session import GetSession
from moonpool.client.memory_store import MemoryStore
from moonpool.client.node_calls import NodeCalls
from moonpool.client.placement import STRATEGY_NAMES
from moonpool.client.put_session import PutSession
from moonpool.client.store_client import StoreClient
from moonpool.client.sync_client import SyncStoreClient

__all__ = [
    "STRATEGY_NAMES",
    "BadName",
    "BadRange",
    "BlockStore",
    "Copies",
    "CorruptValue",
    "DeadlineOver",
    "GetResult",
    "GetSession",
    "LastCopy",
    "LeaseLost",
    "MemoryStore",
    "NoNodes",
    "NoSpace",
    "NodeCalls",
    "PutFailed",
    "PutSession",
    "SessionOver",
    "StillLoading",
    "Store",
    "StoreClient",
    "SyncStoreClient",
    "TargetTooSmall",
    "UnknownNode",
    "ValueTooLarge",
]
