"""Who asks about names while the node is not sure of them: readers wait, writers come again."""

from collections.abc import Sequence

import msgspec

from moonpool.kv import KEY_BYTES
from moonpool.kv.named import MARK
from moonpool.messages.store import (
    GetStartRequest,
    ListRequest,
    PinRequest,
    PutEndRequest,
    PutStartRequest,
    PutWholeRequest,
    RemoveRequest,
    SecureRequest,
)
from services.store.core import Commit
from services.store.errors import WasAway
from services.store.presence import Presence


async def admit(presence: Presence, request: msgspec.Struct) -> None:
    """Returns when it may be answered. Raises WasAway for what would change a name: its sender may
    have given up long ago, and somebody else have changed it since."""
    match request:
        case PutWholeRequest() | PutStartRequest():
            if any(item.key.startswith(MARK) for item in request.items):
                raise WasAway
        case PutEndRequest():
            if any(item.key.startswith(MARK) or item.takes for item in request.items):
                raise WasAway
        case GetStartRequest() | RemoveRequest() | PinRequest() | SecureRequest():
            if has_names(request.keys):
                await presence.wait()
        case ListRequest():
            await presence.wait()


def but_names(commit: Commit, sound: Sequence[bool]) -> list[bool]:
    """What of a commit that the node was away in may be believed: blocks, which are the same
    whenever they come."""
    return [
        is_sound and index not in commit.takes and not obj.key.startswith(MARK)
        for (index, obj, _), is_sound in zip(commit.doubtful, sound, strict=True)
    ]


def has_names(packed: bytes) -> bool:
    return any(packed.startswith(MARK, at) for at in range(0, len(packed), KEY_BYTES))
