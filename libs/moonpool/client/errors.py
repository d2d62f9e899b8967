"""What can go wrong between a client and the pool. The bus and the transfer library add theirs.

CallerError
├── BadName         no name for a value: empty, too long, or no text
├── BadRange        a range that begins beyond the value's end, or makes no sense
├── ValueTooLarge   larger than a value may be, or than the nodes together
├── TargetTooSmall  the memory to read into is smaller than the value
├── LastCopy        dropping it would lose the value: remove it instead
└── SessionOver     the put or get session was ended, or its time is over
PeerError
├── NoNodes         no store node is known
├── UnknownNode     no node of this id takes values now
├── StillLoading    the node has it in a slow tier and is fetching it: ask again
├── LeaseLost       the lease ran out before the read was over: what was read is void
├── NotNoted        a change was made while a node was silent, and no other could keep it for that
│                   one: it may be undone when that one is back
├── DeadlineOver    a call of the sync face took longer than it was allowed to
└── PutFailed       the node did not commit: the put ran out of time, or others kept changing it
CapacityError
└── NoSpace         the node has no room that it may free, or another put of this key runs
CorruptionError
└── CorruptValue    bytes differ from their checksum; the node was told
"""

from moonpool.messages.errors import CallerError, CapacityError, CorruptionError, PeerError


class BadName(CallerError):
    code = "bad_name"


class BadRange(CallerError):
    code = "bad_range"


class ValueTooLarge(CallerError):
    code = "value_too_large"


class TargetTooSmall(CallerError):
    code = "target_too_small"


class LastCopy(CallerError):
    code = "last_copy"


class SessionOver(CallerError):
    code = "session_over"


class NoNodes(PeerError):
    code = "no_nodes"


class UnknownNode(PeerError):
    code = "unknown_node"


class StillLoading(PeerError):
    code = "still_loading"


class LeaseLost(PeerError):
    code = "lease_lost"


class NotNoted(PeerError):
    code = "not_noted"


class DeadlineOver(PeerError):
    code = "deadline_over"


class PutFailed(PeerError):
    code = "put_failed"


class NoSpace(CapacityError):
    code = "no_space"


class CorruptValue(CorruptionError):
    code = "corrupt_value"
