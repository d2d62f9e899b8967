"""owner -> conductors: which blocks it holds (`mp.kv.events.<owner>`, `mp.kv.snapshot.<owner>`)."""

import msgspec

from moonpool.messages.ids import OwnerId


class KvEvents(msgspec.Struct, frozen=True):
    """A change of one tier. `seq` rises by one per message within an `epoch`.

    A gap, or an epoch not seen before, means: ask for a snapshot.
    """

    owner: OwnerId
    epoch: str  # new at every start of the owner
    seq: int  # 1, 2, ..
    tier: str
    stored: bytes = b""  # packed keys
    removed: bytes = b""


class SnapshotRequest(msgspec.Struct, frozen=True):
    """One page. Start with `cursor=0`; go on with the reply's `next_cursor` until it is 0."""

    cursor: int = 0
    epoch: str = ""  # of the first page; a page of another epoch is refused
    keys_max: int = 16384


class SnapshotPage(msgspec.Struct, frozen=True):
    """Keys held when the first page was cut. Apply events with `seq` above `seq` afterwards;
    applying one twice is harmless."""

    owner: OwnerId
    epoch: str
    seq: int
    tiers: dict[str, bytes]  # tier -> packed keys
    next_cursor: int = 0
