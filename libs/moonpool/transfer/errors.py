"""Errors of the transfer library, by who is to blame.

CallerError
├── BadTransfer        a request that can never work: bounds, rights, a foreign loop; fix the call
├── BadTopology        a description of NICs and memory that says what cannot be; fix the text
├── GrantRefused       the owner does not honour the grant: `reason` says why; ask for a new one
├── RegionClosed       local memory that is unregistered, or an engine that is closed
└── TransferCancelled  the batch was cancelled before this request was done
PeerError
├── PeerLost           the peer is gone, or no path to it works: try another replica
│   └── PeerUntrusted  whoever answers there does not prove that it belongs to the mesh (tls)
└── TransferTimeout    the deadline passed first: the peer is slow, stopped or cut off
CapacityError
└── TransferBusy       too many requests wait already: send less at once
CorruptionError
└── TransferCorrupt    a checked transfer brought other bytes than were sent, on every path
"""

from moonpool.messages.errors import CallerError, CapacityError, CorruptionError, PeerError


class BadTransfer(CallerError):
    code = "bad_transfer"


class BadTopology(CallerError):
    code = "bad_topology"


class GrantRefused(CallerError):
    """`reason`: "unknown" (never issued, wrong key, revoked or its region gone), "expired",
    "rights", "bounds" or "epoch" (issued by an earlier life of the peer)."""

    code = "grant_refused"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RegionClosed(CallerError):
    code = "region_closed"


class TransferCancelled(CallerError):
    code = "transfer_cancelled"


class PeerLost(PeerError):
    code = "peer_lost"

    def __init__(self, message: str) -> None:
        super().__init__(message, elsewhere=True)


class PeerUntrusted(PeerLost):
    code = "peer_untrusted"


class TransferTimeout(PeerError):
    code = "transfer_timeout"

    def __init__(self, message: str) -> None:
        super().__init__(message, elsewhere=True)


class TransferBusy(CapacityError):
    code = "transfer_busy"


class TransferCorrupt(CorruptionError):
    code = "transfer_corrupt"

    def __init__(self, message: str) -> None:
        super().__init__(message, elsewhere=True)
