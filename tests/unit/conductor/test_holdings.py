"""The index, as fed by owners' streams, against dictionaries that do the obvious thing."""

import hashlib
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import OwnerId
from services.conductor.holdings import Holdings, PageResult, StreamState

OWNERS = [OwnerId("a"), OwnerId("b"), OwnerId("c")]
TIERS = ["hbm", "dram"]
KEYS = [hashlib.sha256(bytes([i])).digest()[:16] for i in range(12)]
PAGE_KEYS = 3

owners = st.sampled_from(OWNERS)
tiers = st.sampled_from(TIERS)
key_sets = st.sets(st.sampled_from(KEYS), max_size=6)

Held = dict[str, frozenset[bytes]]


def make_events(
    owner: str, epoch: str, seq: int, stored: list[bytes], removed: list[bytes] | None = None
) -> KvEvents:
    return KvEvents(OwnerId(owner), epoch, seq, "dram", b"".join(stored), b"".join(removed or []))


def make_page(owner: str, epoch: str, seq: int, keys: list[bytes], cursor: int = 0) -> SnapshotPage:
    return SnapshotPage(OwnerId(owner), epoch, seq, {"dram": b"".join(keys)}, cursor)


@dataclass
class Source:
    """An owner as it really is, with what it held after each message."""

    life: int = 0
    seq: int = 0
    held: Held = field(default_factory=dict)
    past: dict[int, Held] = field(default_factory=lambda: {0: {}})
    cut: list[SnapshotPage] = field(default_factory=list)  # pages not asked for yet
    cut_epoch: str = ""

    @property
    def epoch(self) -> str:
        return f"life{self.life}"


class StreamsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.holdings = Holdings()
        self.sources = {owner: Source() for owner in OWNERS}
        self.suspects: set[OwnerId] = set()

    @rule(owner=owners, tier=tiers, stored=key_sets, removed=key_sets, lost=st.booleans())
    def change(
        self, owner: OwnerId, tier: str, stored: set[bytes], removed: set[bytes], lost: bool
    ) -> None:
        source = self.sources[owner]
        source.seq += 1
        now = (source.held.get(tier, frozenset()) - removed) | (stored - removed)
        source.held = {**source.held, tier: now}
        source.past[source.seq] = source.held
        if not lost:
            self.holdings.apply(
                KvEvents(
                    owner,
                    source.epoch,
                    source.seq,
                    tier,
                    b"".join(sorted(stored - removed)),
                    b"".join(sorted(removed)),
                )
            )

    @rule(owner=owners)
    def restart(self, owner: OwnerId) -> None:
        """The owner forgets everything; conductors learn it from whatever it says next."""
        self.sources[owner] = Source(life=self.sources[owner].life + 1)

    @rule(owner=owners)
    def late_message_of_an_old_life(self, owner: OwnerId) -> None:
        source = self.sources[owner]
        if source.life and self.holdings.epoch(owner) == source.epoch:
            before = self.where_all(owner)
            self.holdings.apply(KvEvents(owner, f"life{source.life - 1}", 99, "hbm", KEYS[0]))
            # Whoever skipped a life may take the message for news, and then asks for a snapshot.
            if self.holdings.epoch(owner) == source.epoch:
                assert self.where_all(owner) == before

    @rule(owner=owners, final=st.booleans())
    def end(self, owner: OwnerId, final: bool) -> None:
        self.holdings.end_life(owner, final=final)
        assert self.where_all(owner) == {}
        self.suspects.discard(owner)
        if final:
            self.restart(owner)

    @rule(owner=owners, suspect=st.booleans())
    def doubt(self, owner: OwnerId, suspect: bool) -> None:
        if self.holdings.epoch(owner) is None:
            return
        self.holdings.set_usable(owner, not suspect)
        (self.suspects.add if suspect else self.suspects.discard)(owner)

    @rule(owner=owners)
    def heartbeat(self, owner: OwnerId) -> None:
        if self.holdings.begin_life(owner, self.sources[owner].epoch):
            self.suspects.discard(owner)

    @rule(owner=owners)
    def begin_snapshot(self, owner: OwnerId) -> None:
        if owner not in self.holdings.wanting():
            return
        source = self.sources[owner]
        source.cut_epoch = self.holdings.begin_snapshot(owner) or ""
        flat = [(tier, key) for tier in TIERS for key in sorted(source.held.get(tier, ()))]
        source.cut = []
        for start in range(0, max(1, len(flat)), PAGE_KEYS):
            part = flat[start : start + PAGE_KEYS]
            keys = {t: b"".join(k for tier, k in part if tier == t) for t in TIERS}
            more = start + PAGE_KEYS < len(flat)
            source.cut.append(
                SnapshotPage(owner, source.epoch, source.seq, keys, start + 1 if more else 0)
            )

    @rule(owner=owners)
    def next_page(self, owner: OwnerId) -> None:
        source = self.sources[owner]
        if not source.cut or self.holdings.state(owner) is not StreamState.LOADING:
            return
        page = source.cut.pop(0)
        result = self.holdings.apply_page(page, source.cut_epoch)
        if result is PageResult.DONE:
            assert self.holdings.state(owner) is StreamState.FOLLOWING
        elif result is PageResult.RESTART:
            source.cut = []

    @rule(keys=st.integers(1, 8))
    def sweep(self, keys: int) -> None:
        self.holdings.index.sweep(keys)

    def where_all(self, owner: OwnerId) -> dict[bytes, set[str]]:
        found: dict[bytes, set[str]] = {}
        for key in KEYS:
            held = {tier for who, tier in self.holdings.where(key) if who == owner}
            if held:
                found[key] = held
        return found

    @invariant()
    def books_balance(self) -> None:
        self.holdings.check()

    @invariant()
    def followed_owners_are_known_as_of_their_last_message(self) -> None:
        for owner, source in self.sources.items():
            stream = self.holdings._streams.get(owner)
            if stream is None or stream.epoch != source.epoch:
                continue
            found = self.where_all(owner)
            if owner in self.holdings._unusable:
                assert found == {}, "a suspect owner is not chosen"
            elif stream.state is StreamState.FOLLOWING:
                truth = source.past[stream.seq]
                expected = {
                    key: {tier for tier in TIERS if key in truth.get(tier, ())} for key in KEYS
                }
                assert found == {key: held for key, held in expected.items() if held}


StreamsMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestStreams = StreamsMachine.TestCase


def follow(holdings: Holdings, owner: str, epoch: str, keys: list[bytes], seq: int = 1) -> None:
    holdings.begin_life(OwnerId(owner), epoch)
    holdings.begin_snapshot(OwnerId(owner))
    assert holdings.apply_page(make_page(owner, epoch, seq, keys), epoch) is PageResult.DONE


def test_a_gap_keeps_the_old_picture_until_the_snapshot_is_complete() -> None:
    holdings = Holdings()
    follow(holdings, "a", "e1", KEYS[:2])
    assert holdings.apply(make_events("a", "e1", 3, KEYS[2:3]))
    assert holdings.wanting() == ["a"]
    assert holdings.where(KEYS[0]) == [("a", "dram")]
    holdings.begin_snapshot(OwnerId("a"))
    holdings.apply(make_events("a", "e1", 4, KEYS[3:4]))
    assert holdings.apply_page(make_page("a", "e1", 3, KEYS[2:3]), "e1") is PageResult.DONE
    assert [bool(holdings.where(key)) for key in KEYS[:4]] == [False, False, True, True]


def test_a_new_epoch_erases_the_old_life_at_once() -> None:
    holdings = Holdings()
    follow(holdings, "a", "e1", KEYS[:2])
    assert holdings.apply(make_events("a", "e2", 1, KEYS[5:6]))
    assert holdings.where(KEYS[0]) == []
    assert not holdings.apply(make_events("a", "e1", 2, KEYS[:1])), "the old life stays over"
    assert holdings.epoch(OwnerId("a")) == "e2"


def test_an_owner_that_was_only_silent_comes_back_under_its_old_epoch() -> None:
    holdings = Holdings()
    follow(holdings, "a", "e1", KEYS[:2])
    assert holdings.end_life(OwnerId("a"), final=False) == 2
    assert holdings.where(KEYS[0]) == []
    follow(holdings, "a", "e1", KEYS[:2], seq=7)
    assert holdings.where(KEYS[0]) == [("a", "dram")]


def test_too_many_events_during_a_snapshot_start_it_again(monkeypatch) -> None:
    monkeypatch.setattr("services.conductor.holdings._KEPT_EVENTS_MAX", 2)
    holdings = Holdings()
    holdings.begin_life(OwnerId("a"), "e1")
    holdings.begin_snapshot(OwnerId("a"))
    for seq in (2, 3, 4):
        holdings.apply(make_events("a", "e1", seq, KEYS[:1]))
    assert holdings.apply_page(make_page("a", "e1", 1, []), "e1") is PageResult.RESTART
    assert holdings.wanting() == ["a"]


def test_bits_of_ended_lives_are_used_again_after_the_sweep() -> None:
    holdings = Holdings()
    for life in range(50):
        follow(holdings, "a", f"e{life}", KEYS)
        while not holdings.index.sweep(4):
            pass
    assert holdings.index.places._next <= 1 << 2
    assert len(holdings.index) == len(KEYS)
    holdings.end_life(OwnerId("a"), final=True)
    assert holdings.index.sweep(1000)
    assert len(holdings.index) == 0
