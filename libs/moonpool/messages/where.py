"""anyone -> conductor: who holds these blocks? (`mp.conductor.where`)

For routers that are not ours: keys of a prompt in, holders out. It plans nothing and counts against
nobody.
"""

import msgspec


class WhereRequest(msgspec.Struct, frozen=True):
    keys: bytes  # packed keys, in the order of the prompt; one key alone is fine


class Holder(msgspec.Struct, frozen=True):
    """One owner's copies in one tier."""

    owner: str
    role: str  # "prefill", "decode", "colocated", "store", "foreign"
    host: str
    tier: str  # "hbm", "dram", "nvme", "oss"
    prefix_blocks: int  # leading blocks without a hole: what a router counts on
    blocks: int  # of all that were asked for; >= prefix_blocks
    url: str = ""  # of a foreign engine


class WhereReply(msgspec.Struct, frozen=True):
    """`holders` with the longest prefix first; those that are suspect are left out."""

    conductor: str
    blocks: int  # asked for
    holders: tuple[Holder, ...] = ()
