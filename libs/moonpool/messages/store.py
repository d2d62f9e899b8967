"""anyone -> store node (`mp.store.<owner>.*`), batched: one message per node, one result per key.

Instances answer `get_start` and `get_end` too, for blocks of their own device pool.
"""

import msgspec

from moonpool.messages.ids import TenantId
from moonpool.messages.segments import RegionGrant


class PutItem(msgspec.Struct, frozen=True, array_like=True):
    key: bytes  # 16 bytes
    size_bytes: int
    chunk_bytes: int  # checksums cover chunks of this size (a layer of a block); divides size_bytes


class PutStartRequest(msgspec.Struct, frozen=True):
    tenant: TenantId
    items: list[PutItem]
    ttl_s: float = 30.0  # an unfinished put is reclaimed after it


class PutSlot(msgspec.Struct, frozen=True, array_like=True):
    """`status`: "ok" (write), "exists" (nothing to do), "busy" (another put runs), "no_space"."""

    status: str
    offset: int = 0  # in bytes, relative to the grant's own offset
    generation: int = 0


class PutStartReply(msgspec.Struct, frozen=True):
    put: int  # id of the put session; 0 when no slot is "ok"
    slots: list[PutSlot]
    grant: RegionGrant | None = None


class PutEndItem(msgspec.Struct, frozen=True, array_like=True):
    key: bytes
    generation: int
    checksums: bytes  # one little-endian u64 xxh3 per chunk; empty: abandon this item


class PutEndRequest(msgspec.Struct, frozen=True):
    put: int
    items: list[PutEndItem]


class PutEndReply(msgspec.Struct, frozen=True):
    """Per item: "committed", "abandoned", "corrupt" (checksum differs), "expired"."""

    results: list[str]


class GetStartRequest(msgspec.Struct, frozen=True):
    tenant: TenantId
    keys: bytes  # packed
    lease_s: float = 10.0  # 0: only look; no lease, and not counted as a use
    wait_s: float = 0.05  # for blocks that come from lower tiers; the others are "loading" then


class GetSlot(msgspec.Struct, frozen=True, array_like=True):
    """`status`: "hit", "miss", or "loading" (in a lower tier, being promoted: ask again).
    `tier` is where it came from for this request."""

    status: str
    offset: int = 0  # in bytes, relative to the grant's own offset
    size_bytes: int = 0
    chunk_bytes: int = 0
    generation: int = 0
    checksums: bytes = b""
    tier: str = ""


class GetStartReply(msgspec.Struct, frozen=True):
    lease: int  # id; 0 when nothing hit
    slots: list[GetSlot]
    grant: RegionGrant | None = None


class GetEndRequest(msgspec.Struct, frozen=True):
    lease: int


class GetEndReply(msgspec.Struct, frozen=True):
    """`valid` is False when the lease ran out before: what was read must be thrown away."""

    valid: bool


class RemoveRequest(msgspec.Struct, frozen=True):
    """`reason` "corrupt": a reader found a wrong checksum; the owner looks itself before it drops
    anything, whoever asks."""

    tenant: TenantId
    keys: bytes
    reason: str = ""


class RemoveReply(msgspec.Struct, frozen=True):
    """Per key: "removed", "miss", "leased" (goes when the last lease ends), "pinned"; "intact" when
    it was said to be corrupt and is not."""

    results: list[str]


class PinRequest(msgspec.Struct, frozen=True):
    tenant: TenantId
    keys: bytes
    kind: str  # "soft" (ttl_s), "hard", "none" (unpin)
    ttl_s: float = 1800.0


class PinReply(msgspec.Struct, frozen=True):
    results: list[str]  # "pinned", "unpinned", "miss", "over_quota"


class StatsRequest(msgspec.Struct, frozen=True):
    pass


class TierStats(msgspec.Struct, frozen=True):
    tier: str
    blocks: int
    bytes_used: int
    bytes_total: int
    evictions: int = 0
    health: str = "ok"  # or what is wrong


class StatsReply(msgspec.Struct, frozen=True):
    tiers: list[TierStats]
    leases: int = 0
    puts_open: int = 0
    counters: dict[str, int] = {}


class DrainRequest(msgspec.Struct, frozen=True):
    pass


class DrainReply(msgspec.Struct, frozen=True):
    accepted: bool
