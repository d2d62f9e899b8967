"""anyone -> store node (`mp.store.<owner>.*`), batched: one message per node, one result per key.

Instances answer `get_start` and `get_end` too, for blocks of their own device pool.
"""

import msgspec

from moonpool.messages.ids import TenantId
from moonpool.messages.segments import RegionGrant

INLINE_MAX_BYTES = 16 << 10  # of an object that travels in a message


class PutItem(msgspec.Struct, frozen=True, array_like=True):
    key: bytes  # 16 bytes
    size_bytes: int
    chunk_bytes: int  # checksums cover chunks of this size (a layer of a block); divides size_bytes


class PutStartRequest(msgspec.Struct, frozen=True):
    tenant: TenantId
    items: list[PutItem]
    ttl_s: float = 30.0  # an unfinished put is reclaimed after it
    run_blocks: int = 0  # blocks of the prompt that these belong to; 0: unknown
    # Nodes that are to hold them; the holders see to it. For bytes that never change under a key.
    replicas: int = 1


class PutSlot(msgspec.Struct, frozen=True, array_like=True):
    """`status`: "ok" (write), "exists" (nothing to do), "busy" (another put runs), "no_space",
    "over_quota" (the tenant's)."""

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
    takes: bytes = b""  # a key that it takes over at once, in place of what lies there


class PutEndRequest(msgspec.Struct, frozen=True):
    put: int
    items: list[PutEndItem]
    durable: bool = False  # answer once a lower tier has them, so that they survive a crash


class PutEndReply(msgspec.Struct, frozen=True):
    """Per item: "committed", "abandoned", "corrupt" (checksum differs), "expired";
    "not_durable": stored, but no lower tier has taken it in time."""

    results: list[str]


class GetStartRequest(msgspec.Struct, frozen=True):
    tenant: TenantId
    keys: bytes  # packed
    lease_s: float = 10.0  # 0: only look; no lease, and not counted as a use
    wait_s: float = 0.05  # for blocks that come from lower tiers; the others are "loading" then
    inline_bytes: int = 0  # objects up to it come in the reply itself, as far as there is room
    tail_bytes: int = 0  # and of larger ones so many last bytes, which say what they are
    run_blocks: int = 0  # blocks of the prompt that asks; 0: unknown


class GetSlot(msgspec.Struct, frozen=True, array_like=True):
    """`status`: "hit", "miss", or "loading" (in a lower tier, being promoted: ask again).
    `tier` is where it came from for this request. `data` is the whole object when it has at most
    `inline_bytes`, else its last `tail_bytes`; empty when the reply had no room for it."""

    status: str
    offset: int = 0  # in bytes, relative to the grant's own offset
    size_bytes: int = 0
    chunk_bytes: int = 0
    generation: int = 0
    checksums: bytes = b""
    tier: str = ""
    data: bytes = b""


class GetStartReply(msgspec.Struct, frozen=True):
    lease: int  # id; 0 when nothing hit
    slots: list[GetSlot]
    grant: RegionGrant | None = None


class GetEndRequest(msgspec.Struct, frozen=True):
    lease: int  # 0: none, to hear whether anybody is there


class GetEndReply(msgspec.Struct, frozen=True):
    """`valid` is False when the lease ran out before: what was read must be thrown away."""

    valid: bool


class WholeItem(msgspec.Struct, frozen=True, array_like=True):
    """A small object of one chunk that travels in the message. `replace`: in place of what lies
    there, if that has generation `expected` (0: whatever it is, or nothing)."""

    key: bytes  # 16 bytes
    data: bytes  # 1..INLINE_MAX_BYTES
    checksum: bytes  # little-endian u64 xxh3 of `data`
    replace: bool = False
    expected: int = 0


class PutWholeRequest(msgspec.Struct, frozen=True):
    tenant: TenantId
    items: list[WholeItem]


class PutWholeReply(msgspec.Struct, frozen=True):
    """Per item "committed", "exists", "busy", "no_space", "corrupt", "over_quota", or "changed" (it
    is not the generation that was expected)."""

    results: list[str]


class PromoteRequest(msgspec.Struct, frozen=True):
    """Somebody will read these soon: what lies in lower tiers starts on its way up. No lease, and
    not counted as a use."""

    tenant: TenantId
    keys: bytes  # packed
    run_blocks: int = 0


class PromoteReply(msgspec.Struct, frozen=True):
    loading: int  # of the keys, on their way now


class SecureRequest(msgspec.Struct, frozen=True):
    """Copies what is only in memory to a lower tier now; answered when it is there."""

    tenant: TenantId
    keys: bytes  # packed
    wait_s: float = 2.0  # at most


class SecureReply(msgspec.Struct, frozen=True):
    """Per key: "durable" (a crash does not lose it), "not_durable", "miss"."""

    results: list[str]


class RemoveRequest(msgspec.Struct, frozen=True):
    """`reason` "corrupt": a reader found a wrong checksum; the owner looks itself before it drops
    anything, whoever asks."""

    tenant: TenantId
    keys: bytes
    reason: str = ""
    generations: list[int] = []  # per key: only if it still has this one; empty: whatever it is


class RemoveReply(msgspec.Struct, frozen=True):
    """Per key: "removed", "miss", "leased" (goes when the last lease ends), "pinned"; "intact" when
    it was said to be corrupt and is not."""

    results: list[str]


class PinRequest(msgspec.Struct, frozen=True):
    tenant: TenantId
    keys: bytes
    kind: str  # "soft" (ttl_s), "hard", "none" (unpin), "copies" (as it is; only `replicas`)
    ttl_s: float = 1800.0
    replicas: int = 1  # nodes that are to hold them, as in PutStartRequest


class PinReply(msgspec.Struct, frozen=True):
    results: list[str]  # "pinned", "unpinned", "miss", "over_quota"
    before: list[str] = []  # per key how it was pinned until now: "soft", "hard" or ""


class CopyRequest(msgspec.Struct, frozen=True):
    """conductor -> node: these hot blocks should lie on `target` too. Sent in the background."""

    tenant: TenantId
    keys: bytes  # packed
    target: str  # id of a node


class CopyReply(msgspec.Struct, frozen=True):
    """Per key: "committed", "exists", "miss" (not in this node's memory), "no_space", "over_quota",
    "busy" (too many at once), "unreachable" (`target` takes nothing now), "failed"."""

    results: list[str]


class SpareRequest(msgspec.Struct, frozen=True):
    """conductor -> node: others hold these as well. They go first when room is needed, unless
    somebody reads them before."""

    tenant: TenantId
    keys: bytes  # packed


class SpareReply(msgspec.Struct, frozen=True):
    results: list[str]  # "spare", "miss", "wanted" (copies were asked for by whoever put it)


class StatsRequest(msgspec.Struct, frozen=True):
    pass


class TierStats(msgspec.Struct, frozen=True):
    tier: str
    blocks: int
    bytes_used: int
    bytes_total: int
    evictions: int = 0
    health: str = "ok"  # or what is wrong
    fragmentation: float = 0.0  # share of the free bytes that one object could not get


class TenantStats(msgspec.Struct, frozen=True):
    bytes_used: dict[str, int]  # by tier
    hard_bytes: int = 0  # pinned hard
    over_quota: int = 0  # blocks refused
    evicted: int = 0  # of its own blocks, to stay within its quota


class StatsReply(msgspec.Struct, frozen=True):
    tiers: list[TierStats]
    leases: int = 0
    puts_open: int = 0
    counters: dict[str, int] = {}
    tenants: dict[str, TenantStats] = {}


class DrainRequest(msgspec.Struct, frozen=True):
    within_s: float = 60.0  # what is worth keeping is moved to other nodes until then


class DrainReply(msgspec.Struct, frozen=True):
    accepted: bool


class ListRequest(msgspec.Struct, frozen=True):
    """A tenant's named values on this node, in the order of their names."""

    tenant: TenantId
    prefix: str = ""
    after: str = ""  # only names above it
    limit: int = 1000  # >= 1


class ListedName(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size_bytes: int  # of the value


class ListReply(msgspec.Struct, frozen=True):
    names: list[ListedName]
    more: bool = False  # ask again, after the last one
    unread: int = 0  # objects from before the node's start whose names it does not know yet


class WipeRequest(msgspec.Struct, frozen=True):
    """Everything that the tenant put, named or not, pinned or not, in every tier."""

    tenant: TenantId


class WipeReply(msgspec.Struct, frozen=True):
    removed: int
