"""One stored object (usually a KV block), and the states it goes through.

    put_start -> WRITING -> put_end -> VERIFYING -> LIVE -> evicted, or removed: gone
    get_start, in a lower tier only ---> LOADING --^

WRITING ends early when the writer abandons it (gone) or is out of time (DOOMED until the writer is
locked out); VERIFYING when a checksum differs (gone); LIVE, when removed while leased, in DOOMED.
"""

from enum import StrEnum

import msgspec

from moonpool.cache import NO_HINT, BlockHint
from moonpool.kv import BlockKey
from moonpool.kv.checksum import CHECKSUM_BYTES
from moonpool.messages.ids import TenantId


class State(StrEnum):
    WRITING = "writing"  # a put runs; nobody can read it
    VERIFYING = "verifying"  # its put ended; checksums are being compared
    LOADING = "loading"  # its bytes come from a lower tier, which holds it with one lease
    LIVE = "live"
    DOOMED = "doomed"  # removed, but somebody still touches its place; its key is free again


class Seat(StrEnum):
    """Where a live object stands with respect to eviction."""

    ORDER = "order"  # in the policy's order
    PARKED = "parked"  # was its turn to go, but it is leased; back in the order afterwards
    AWAITED = "awaited"  # was its turn to go, but a queued request will read it
    SOFT = "soft"  # pinned for a while; goes only when nothing else can
    HARD = "hard"  # never goes
    NONE = "none"  # not live


class StoredObject(msgspec.Struct, eq=False, gc=False):
    """Nothing in it can refer to another object: the collector need not look at millions of them,
    which would hold the event loop for a tenth of a second and more."""

    key: BlockKey
    tenant: TenantId
    size_bytes: int
    chunk_bytes: int  # divides size_bytes
    place: int  # in its tier
    generation: int  # unique in this life of the node
    state: State = State.WRITING
    seat: Seat = Seat.NONE
    checksums: bytes = b""  # one per chunk once LIVE
    leases: int = 0  # readers, a late writer, or moves between tiers; its place is kept while > 0
    replicas: int = 1  # nodes that are to hold it
    hint: BlockHint = NO_HINT  # of whoever used it last

    @property
    def checksums_bytes(self) -> int:
        """Length that `checksums` must have."""
        return self.size_bytes // self.chunk_bytes * CHECKSUM_BYTES
