"""Copies that a conductor asks for: to one more node, and back to as many as there were.

What is copied lies in dram here; what lies below is not worth its way up for that. A copy that is
one too many is not dropped: it goes first when room is needed, unless somebody reads it before. So
a conductor that is wrong about other holders costs a copy its turn, and never the last bytes.
"""

from moonpool.kv import BlockKey, unpack_keys
from moonpool.messages.ids import check_id
from moonpool.messages.store import CopyReply, CopyRequest, SpareReply, SpareRequest
from services.store.core import StoreCore
from services.store.errors import BadRequest
from services.store.peers import Peers

KEYS_MAX = 256  # per request
AT_ONCE_MAX = 2  # requests that send; others are told "busy"


class Spread:
    """One per node. Without `peers`, which come with the company of others, nothing is copied."""

    def __init__(self, core: StoreCore) -> None:
        self._core = core
        self._sending = 0
        self.peers: Peers | None = None

    async def copy(self, request: CopyRequest) -> CopyReply:
        """Sends blocks to another node, behind all other transfers."""
        check_id(request.tenant, "tenant")
        keys = _keys_of(request.keys)
        peers = self.peers
        if peers is None or request.target not in peers.taking():
            return CopyReply(["unreachable"] * len(keys))
        if self._sending >= AT_ONCE_MAX:
            return CopyReply(["busy"] * len(keys))
        self._sending += 1
        try:
            sent = list(dict.fromkeys(keys))
            outcome = await peers.send(request.target, request.tenant, sent, replicas=1)
        finally:
            self._sending -= 1
        return CopyReply([outcome[key] for key in keys])

    async def spare(self, request: SpareRequest) -> SpareReply:
        """These copies are one too many."""
        check_id(request.tenant, "tenant")
        objects, results = self._core.residents.objects, []
        for key in _keys_of(request.keys):
            obj = objects.get(key)
            if obj is None or obj.tenant != request.tenant:
                results.append("miss")
            elif self._core.copies.wanted(key) > 1:
                results.append("wanted")
            else:
                self._core.residents.mark_extra(key)
                results.append("spare")
        return SpareReply(results)


def _keys_of(packed: bytes) -> list[BlockKey]:
    try:
        keys = unpack_keys(packed)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    if len(keys) > KEYS_MAX:
        raise BadRequest(f"{len(keys)} keys; at most {KEYS_MAX} at once")
    return keys
