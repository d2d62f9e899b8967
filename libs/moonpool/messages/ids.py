"""Ids: who is who on the mesh. Each is safe inside a NATS subject (no dot, no space, no `*>`)."""

import re
from typing import NewType

from moonpool.messages.errors import CallerError

NodeId = NewType("NodeId", str)  # a store process
InstanceId = NewType("InstanceId", str)  # a prefill, decode or colocated process
OwnerId = NewType("OwnerId", str)  # whoever holds replicas: a node or an instance
RequestId = NewType("RequestId", str)
TenantId = NewType("TenantId", str)

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_id(text: str, what: str) -> str:
    """`text` when it can be one token of a subject; CallerError names `what` otherwise."""
    if not _TOKEN.fullmatch(text):
        raise CallerError(f"{what} {text!r} must be 1 to 64 letters, digits, '_' or '-'")
    return text
