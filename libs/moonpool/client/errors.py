"""What can go wrong between a client and the pool. The bus and the transfer library add theirs.

CallerError
├── ValueTooLarge   fits no segment (or is empty): it can never be stored
└── SessionOver     the put or get session was ended, or its time is over
PeerError
├── NoNodes         no store node is known
├── StillLoading    the node has it in a slow tier and is fetching it: ask again
├── LeaseLost       the lease ran out before the read was over: what was read is void
└── PutFailed       the node did not commit: the put ran out of time
CapacityError
└── NoSpace         the node has no room that it may free, or another put of this key runs
CorruptionError
└── CorruptValue    bytes differ from their checksum; the node was told
"""

from moonpool.messages.errors import CallerError, CapacityError, CorruptionError, PeerError


class ValueTooLarge(CallerError):
    code = "value_too_large"


class SessionOver(CallerError):
    code = "session_over"


class NoNodes(PeerError):
    code = "no_nodes"


class StillLoading(PeerError):
    code = "still_loading"


class LeaseLost(PeerError):
    code = "lease_lost"


class PutFailed(PeerError):
    code = "put_failed"


class NoSpace(CapacityError):
    code = "no_space"


class CorruptValue(CorruptionError):
    code = "corrupt_value"
