"""Holdings: follows every owner's stream of block events and keeps the index true to it.

Each owner is the only authority over its blocks; this is a cache of what it said, in order. A gap,
an epoch not seen before or a fresh start makes the stream *wanting*: the shell asks the owner for
a snapshot, and events that arrive while its pages come in are kept and applied after the last.
Until then the old picture stands (after a gap) or none does (after a new epoch).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import OwnerId
from services.conductor.index import BlockIndex
from services.conductor.match import Match
from services.conductor.places import Place

_PAST_EPOCHS_MAX = 8  # remembered per owner, so that a late message of an old life is known as one
_PAST_OWNERS_MAX = 4096
_KEPT_EVENTS_MAX = 4096  # kept during one snapshot; more, or more bytes, and it starts again
_KEPT_BYTES_MAX = 32 << 20


class StreamState(StrEnum):
    WANTING = "wanting"  # needs a snapshot
    LOADING = "loading"  # its pages are coming in
    FOLLOWING = "following"  # every event up to `seq` is applied


class PageResult(StrEnum):
    MORE = "more"  # ask for the next page
    DONE = "done"  # the stream follows
    RESTART = "restart"  # void: begin again from the first page


@dataclass(slots=True)
class Stream:
    """What is known of one life of one owner."""

    owner: OwnerId
    epoch: str
    state: StreamState = StreamState.WANTING
    seq: int = 0  # of the last event applied
    places: dict[str, Place] = field(default_factory=dict)  # by tier; the picture that counts
    loading: dict[str, Place] = field(default_factory=dict)  # by tier; the picture that grows
    cut_seq: int = -1  # of the snapshot that loads; -1: no page came yet
    kept: list[KvEvents] = field(default_factory=list)
    kept_bytes: int = 0
    overflowed: bool = False


class Holdings:
    """Who holds what, as told. Not thread-safe."""

    def __init__(self) -> None:
        self.index = BlockIndex()
        self._streams: dict[OwnerId, Stream] = {}
        self._past: dict[OwnerId, deque[str]] = {}
        self._unusable: set[OwnerId] = set()
        self._usable_mask: int | None = None  # None: work it out again
        self.gaps = 0
        self.stale_events = 0

    # -- lives

    def begin_life(self, owner: OwnerId, epoch: str) -> bool:
        """`owner` runs as `epoch` now; what an earlier life held is gone. True when that is news
        and a snapshot is wanted. An epoch that already ended is ignored."""
        stream = self._streams.get(owner)
        if stream and stream.epoch == epoch:
            return False
        if epoch in self._past.get(owner, ()):
            self.stale_events += 1
            return False
        if stream:
            self.end_life(owner, final=True)
        self._streams[owner] = Stream(owner, epoch)
        return True

    def end_life(self, owner: OwnerId, *, final: bool) -> int:
        """Erases all that `owner` held; the number of replicas. After a `final` end (a restart, a
        goodbye) the epoch cannot come back; after a mere silence it can, and starts empty."""
        stream = self._streams.pop(owner, None)
        if stream is None:
            return 0
        if final:
            past = self._past.setdefault(owner, deque(maxlen=_PAST_EPOCHS_MAX))
            past.append(stream.epoch)
            while len(self._past) > _PAST_OWNERS_MAX:
                del self._past[next(iter(self._past))]
        erased = sum(place.blocks for place in stream.places.values())
        self._retire(stream.places)
        self._retire(stream.loading)
        self._unusable.discard(owner)
        return erased

    def set_usable(self, owner: OwnerId, usable: bool) -> None:
        """A suspect owner's blocks stay in the index but are not chosen."""
        if usable == (owner not in self._unusable):
            return
        if usable:
            self._unusable.discard(owner)
        else:
            self._unusable.add(owner)
        self._usable_mask = None

    # -- events

    def apply(self, events: KvEvents) -> bool:
        """One message of the stream. True when a snapshot is wanted now that was not before."""
        owner = events.owner
        news = self.begin_life(owner, events.epoch)
        stream = self._streams.get(owner)
        if stream is None or stream.epoch != events.epoch:
            return False
        if news or stream.state is StreamState.WANTING:
            return news  # whatever it says, the snapshot will say too
        if stream.state is StreamState.LOADING:
            self._keep(stream, events)
            return False
        if events.seq <= stream.seq:
            self.stale_events += 1
            return False
        if events.seq > stream.seq + 1:
            self.gaps += 1
            stream.state = StreamState.WANTING
            return True
        self._apply(stream, stream.places, events)
        return False

    def _keep(self, stream: Stream, events: KvEvents) -> None:
        stream.kept_bytes += len(events.stored) + len(events.removed)
        if len(stream.kept) >= _KEPT_EVENTS_MAX or stream.kept_bytes > _KEPT_BYTES_MAX:
            stream.overflowed = True
            stream.kept.clear()
        if not stream.overflowed:
            stream.kept.append(events)

    def _apply(self, stream: Stream, places: dict[str, Place], events: KvEvents) -> None:
        place = self._place(stream, places, events.tier)
        if events.removed:
            self.index.remove(place, events.removed)
        if events.stored:
            self.index.store(place, events.stored)
        stream.seq = events.seq

    def _place(self, stream: Stream, places: dict[str, Place], tier: str) -> Place:
        place = places.get(tier)
        if place is None:
            place = places[tier] = self.index.places.take(stream.owner, tier)
            self._usable_mask = None
        return place

    # -- snapshots

    def wanting(self) -> list[OwnerId]:
        """Owners whose snapshot must be asked for."""
        return [s.owner for s in self._streams.values() if s.state is StreamState.WANTING]

    def begin_snapshot(self, owner: OwnerId) -> str | None:
        """Call right before the first page is asked for. The epoch to ask for; None when the owner
        is gone. Events from now on are kept."""
        stream = self._streams.get(owner)
        if stream is None:
            return None
        self._drop_snapshot(stream)
        stream.state = StreamState.LOADING
        return stream.epoch

    def abandon_snapshot(self, owner: OwnerId, epoch: str) -> None:
        """The owner did not answer; its stream wants a snapshot again."""
        stream = self._streams.get(owner)
        if stream and stream.epoch == epoch and stream.state is StreamState.LOADING:
            self._drop_snapshot(stream)
            stream.state = StreamState.WANTING

    def apply_page(self, page: SnapshotPage, epoch: str) -> PageResult:
        """One page of the snapshot that was begun for `epoch`."""
        stream = self._streams.get(page.owner)
        if stream is None or stream.epoch != epoch or stream.state is not StreamState.LOADING:
            return PageResult.RESTART
        if stream.cut_seq < 0:
            stream.cut_seq = page.seq
        if page.epoch != epoch or stream.overflowed:
            self.abandon_snapshot(page.owner, epoch)
            if page.epoch != epoch:  # it restarted: proof that the old life is over
                self.begin_life(page.owner, page.epoch)
            return PageResult.RESTART
        for tier, keys in page.tiers.items():
            self.index.store(self._place(stream, stream.loading, tier), keys)
        if page.next_cursor:
            return PageResult.MORE
        return self._finish_snapshot(stream)

    def _finish_snapshot(self, stream: Stream) -> PageResult:
        stream.seq = stream.cut_seq
        for events in stream.kept:
            if events.seq > stream.seq + 1:
                self.gaps += 1
                self.abandon_snapshot(stream.owner, stream.epoch)
                return PageResult.RESTART
            if events.seq == stream.seq + 1:
                self._apply(stream, stream.loading, events)
        old, stream.places, stream.loading = stream.places, stream.loading, {}
        self._retire(old)
        self._drop_snapshot(stream)
        stream.state = StreamState.FOLLOWING
        return PageResult.DONE

    def _drop_snapshot(self, stream: Stream) -> None:
        self._retire(stream.loading)
        stream.loading = {}
        stream.cut_seq = -1
        stream.kept = []
        stream.kept_bytes = 0
        stream.overflowed = False

    def _retire(self, places: dict[str, Place]) -> None:
        for place in places.values():
            self.index.retire(place)
        self._usable_mask = None

    # -- questions

    def match(self, keys: bytes, excluded: Iterable[OwnerId] = (), exact: bool = False) -> Match:
        """Who holds the leading blocks, among owners that can be chosen and are not `excluded`."""
        usable = self.usable_mask() & ~self._mask_of(excluded)
        return self.index.walk(keys, usable) if exact else self.index.match(keys, usable)

    def where(self, key: bytes) -> list[tuple[OwnerId, str]]:
        """Owner and tier of everybody who can be chosen and holds `key`."""
        return self.index.where(key, self.usable_mask())

    def masks(self, keys: bytes) -> list[int]:
        """Per key, the bits of everybody who can be chosen and holds it."""
        return self.index.masks(keys, self.usable_mask())

    def bit(self, owner: OwnerId, tier: str) -> int:
        """The bit of a place that counts, 0 when there is none."""
        stream = self._streams.get(owner)
        place = stream.places.get(tier) if stream else None
        return place.bit if place else 0

    def usable_mask(self) -> int:
        """Bits of all places that may be chosen."""
        if self._usable_mask is None:
            self._usable_mask = self._mask_of(o for o in self._streams if o not in self._unusable)
        return self._usable_mask

    def _mask_of(self, owners: Iterable[OwnerId]) -> int:
        mask = 0
        for owner in owners:
            stream = self._streams.get(owner)
            if stream:
                for place in stream.places.values():
                    mask |= place.bit
        return mask

    def owners(self) -> list[OwnerId]:
        return list(self._streams)

    def epoch(self, owner: OwnerId) -> str | None:
        stream = self._streams.get(owner)
        return stream.epoch if stream else None

    def blocks(self, owner: OwnerId) -> dict[str, int]:
        """Tier -> blocks that `owner` holds, as told."""
        stream = self._streams.get(owner)
        return {t: p.blocks for t, p in stream.places.items()} if stream else {}

    def state(self, owner: OwnerId) -> StreamState | None:
        stream = self._streams.get(owner)
        return stream.state if stream else None

    def stats(self) -> dict[str, int]:
        states = [stream.state for stream in self._streams.values()]
        return {
            **self.index.stats(),
            "owners": len(states),
            "owners_following": states.count(StreamState.FOLLOWING),
            "gaps": self.gaps,
            "stale_events": self.stale_events,
        }

    def check(self) -> None:
        """Places of streams and of the index are the same ones; what is kept is bounded."""
        self.index.check()
        known = set()
        for stream in self._streams.values():
            for place in (*stream.places.values(), *stream.loading.values()):
                assert self.index.places.at(place.bit) is place, "the index knows the place"
                assert place.owner == stream.owner, "a place belongs to its owner"
                known.add(place.bit)
            assert not stream.loading or stream.state is StreamState.LOADING
            assert len(stream.kept) <= _KEPT_EVENTS_MAX, "kept events are bounded"
            assert not stream.kept or stream.state is StreamState.LOADING
        assert known == {place.bit for place in self.index.places}, "every place has its stream"
