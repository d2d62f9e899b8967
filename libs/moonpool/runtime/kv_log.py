"""What an owner tells the mesh about its blocks: changes in order, snapshots in pages. Pure.

Changes are coalesced: within one flush only the last thing said of a key in a tier goes out, so a
reader that applies messages in order always ends where the owner is. A snapshot is a frozen copy
with the number of the last message whose effect it surely holds; later messages may repeat some of
it, which is harmless because each states a final condition of a key.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from moonpool.kv import KEY_BYTES, BlockKey
from moonpool.messages.events import KvEvents, SnapshotPage, SnapshotRequest
from moonpool.messages.ids import OwnerId
from moonpool.runtime.errors import SnapshotExpired

Listing = Callable[[], Iterable[bytes]]  # keys held in one tier right now, or packed runs of them

KEYS_PER_MESSAGE_MAX = 4096
PENDING_KEYS_MAX = (
    262_144  # beyond: forget them and leave a gap, so that readers ask for a snapshot
)
CUTS_MAX = 8
CUT_IDLE_MAX_S = 30.0

_OFFSET_BITS = 40  # a cursor is `cut << 40 | keys already given`; a cut's number starts at 1


@dataclass(slots=True)
class _Cut:
    """A frozen copy of everything held at one moment."""

    seq: int
    version: int
    tiers: dict[str, bytes]  # tier -> packed keys
    used_s: float

    @property
    def keys(self) -> int:
        return sum(len(packed) for packed in self.tiers.values()) // KEY_BYTES


class KvLog:
    """Of one owner and one epoch. Time is handed in."""

    def __init__(self, owner: OwnerId, epoch: str, listings: Mapping[str, Listing]) -> None:
        self.owner = owner
        self.epoch = epoch
        self._listings = dict(listings)
        self._seq = 0  # of the last message handed out
        self._version = 0  # rises with every change
        # tier -> key -> whether it is held; insertion order is the order of the last word on it
        self._pending: dict[str, dict[BlockKey, bool]] = {tier: {} for tier in listings}
        self._cuts: dict[int, _Cut] = {}
        self._cuts_made = 0
        self._gaps = 0

    @property
    def seq(self) -> int:
        return self._seq

    @property
    def pending_keys(self) -> int:
        return sum(len(changes) for changes in self._pending.values())

    def stored(self, tier: str, keys: Iterable[BlockKey]) -> None:
        """KeyError on a tier without a listing."""
        self._note(tier, keys, True)

    def removed(self, tier: str, keys: Iterable[BlockKey]) -> None:
        self._note(tier, keys, False)

    def relist(self) -> None:
        """More changed than can be told: readers are to ask for a snapshot."""
        for each in self._pending.values():
            each.clear()
        self._version += 1
        self._seq += 1  # a number nobody will ever see: the gap that asks for a snapshot
        self._gaps += 1

    def take(self) -> list[KvEvents]:
        """The messages that tell what changed since the last call; publish them in this order."""
        return list(iter(self.take_next, None))

    def take_next(self) -> KvEvents | None:
        """The first of them, about a bounded number of keys; None when all is told."""
        for tier, changes in self._pending.items():
            if changes:
                part = list(islice(changes.items(), KEYS_PER_MESSAGE_MAX))
                if len(part) == len(changes):
                    changes.clear()
                else:
                    for key, _ in part:
                        del changes[key]
                return self._message(
                    tier,
                    b"".join(key for key, held in part if held),
                    b"".join(key for key, held in part if not held),
                )
        return None

    def beacon(self) -> KvEvents:
        """A message that changes nothing: readers notice by its number what they missed."""
        return self._message(next(iter(self._listings), "hbm"), b"", b"")

    def page(self, request: SnapshotRequest, now_s: float) -> SnapshotPage:
        """One page of a frozen copy; the first one freezes it. Raises SnapshotExpired when the copy
        is gone or of another epoch."""
        self._expire(now_s)
        if request.epoch and request.epoch != self.epoch:
            raise SnapshotExpired(f"{self.owner} has started anew since page 1", elsewhere=False)
        if request.cursor == 0:
            number, offset = self._freeze(now_s), 0
        else:
            number, offset = request.cursor >> _OFFSET_BITS, request.cursor % (1 << _OFFSET_BITS)
        cut = self._cuts.get(number)
        if cut is None:
            raise SnapshotExpired(f"{self.owner} keeps page copies {CUT_IDLE_MAX_S:g} s")
        cut.used_s = now_s
        end = offset + max(1, request.keys_max)
        more = end < cut.keys
        return SnapshotPage(
            owner=self.owner,
            epoch=self.epoch,
            seq=cut.seq,
            tiers=_slice(cut.tiers, offset * KEY_BYTES, end * KEY_BYTES),
            next_cursor=(number << _OFFSET_BITS | end) if more else 0,
        )

    def check(self) -> None:
        """Asserts what must hold."""
        assert len(self._cuts) <= CUTS_MAX
        assert self.pending_keys <= PENDING_KEYS_MAX
        assert all(cut.seq <= self._seq for cut in self._cuts.values())

    def stats(self) -> dict[str, int]:
        return {
            "seq": self._seq,
            "pending_keys": self.pending_keys,
            "cuts": len(self._cuts),
            "gaps": self._gaps,
        }

    def _note(self, tier: str, keys: Iterable[BlockKey], held: bool) -> None:
        changes = self._pending[tier]
        for key in keys:
            # Taken out first, so that the key moves to the end of the order.
            changes.pop(key, None)
            changes[key] = held
        self._version += 1
        if self.pending_keys > PENDING_KEYS_MAX:
            self.relist()

    def _message(self, tier: str, stored: bytes, removed: bytes) -> KvEvents:
        self._seq += 1
        return KvEvents(
            owner=self.owner,
            epoch=self.epoch,
            seq=self._seq,
            tier=tier,
            stored=stored,
            removed=removed,
        )

    def _freeze(self, now_s: float) -> int:
        """The number of a copy of now; one that is still true is shared."""
        for number, cut in self._cuts.items():
            if cut.version == self._version:
                return number
        while len(self._cuts) >= CUTS_MAX:
            del self._cuts[min(self._cuts, key=lambda number: self._cuts[number].used_s)]
        tiers = {tier: b"".join(listing()) for tier, listing in self._listings.items()}
        self._cuts_made += 1
        self._cuts[self._cuts_made] = _Cut(self._seq, self._version, tiers, now_s)
        return self._cuts_made

    def _expire(self, now_s: float) -> None:
        for number in [n for n, cut in self._cuts.items() if now_s - cut.used_s > CUT_IDLE_MAX_S]:
            del self._cuts[number]


def _slice(tiers: Mapping[str, bytes], start: int, end: int) -> dict[str, bytes]:
    """Bytes `[start, end)` of the tiers laid end to end, by tier."""
    out, base = {}, 0
    for tier, packed in tiers.items():
        part = packed[max(0, start - base) : max(0, end - base)]
        if part:
            out[tier] = part
        base += len(packed)
    return out
