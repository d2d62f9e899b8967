"""What travels on NATS: one file per receiver, one codec.

Frozen msgspec structs for internal subjects; `audit.py` and `metrics.py` are the public JSON
contracts. Import the receiver's module, and `codec` for the bytes. Nothing here does I/O.
"""

from moonpool.messages.codec import MalformedMessage
from moonpool.messages.errors import (
    Blame,
    BugError,
    CallerError,
    CapacityError,
    CorruptionError,
    ErrorInfo,
    MoonpoolError,
    PeerError,
    error_from,
)
from moonpool.messages.ids import InstanceId, NodeId, OwnerId, RequestId, TenantId, check_id
from moonpool.messages.subjects import Subjects

__all__ = [
    "Blame",
    "BugError",
    "CallerError",
    "CapacityError",
    "CorruptionError",
    "ErrorInfo",
    "InstanceId",
    "MalformedMessage",
    "MoonpoolError",
    "NodeId",
    "OwnerId",
    "PeerError",
    "RequestId",
    "Subjects",
    "TenantId",
    "check_id",
    "error_from",
]
