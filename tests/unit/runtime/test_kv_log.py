"""Block events and snapshots: whoever follows them ends where the owner is."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.kv import BlockKey, unpack_keys
from moonpool.messages.events import KvEvents, SnapshotPage, SnapshotRequest
from moonpool.messages.ids import OwnerId
from moonpool.runtime import KvLog, SnapshotExpired
from moonpool.runtime import kv_log as kv_log_module

TIERS = ("hbm", "dram")


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "little"))


class Owner:
    """What it holds, and the log that it tells."""

    def __init__(self) -> None:
        self.held: dict[str, dict[BlockKey, None]] = {tier: {} for tier in TIERS}
        listings = {tier: self._listing(tier) for tier in TIERS}
        self.log = KvLog(OwnerId("n1"), "e1", listings)

    def _listing(self, tier: str):  # type: ignore[no-untyped-def]
        return lambda: list(self.held[tier])

    def store(self, tier: str, keys: Iterable[BlockKey]) -> None:
        keys = list(keys)
        self.held[tier].update(dict.fromkeys(keys))
        self.log.stored(tier, keys)

    def remove(self, tier: str, keys: Iterable[BlockKey]) -> None:
        keys = list(keys)
        for each in keys:
            self.held[tier].pop(each, None)
        self.log.removed(tier, keys)

    def truth(self) -> dict[str, set[BlockKey]]:
        return {tier: set(held) for tier, held in self.held.items()}


class Reader:
    """What a conductor knows: a snapshot and the events after it."""

    def __init__(self) -> None:
        self.known: dict[str, set[BlockKey]] = {tier: set() for tier in TIERS}
        self.seq = 0

    def read(self, pages: list[SnapshotPage]) -> None:
        self.known = {tier: set() for tier in TIERS}
        for page in pages:
            for tier, packed in page.tiers.items():
                self.known[tier].update(unpack_keys(packed))
        self.seq = pages[0].seq

    def apply(self, message: KvEvents) -> None:
        if message.seq <= self.seq:
            return
        assert message.seq == self.seq + 1
        self.seq = message.seq
        stored, removed = unpack_keys(message.stored), unpack_keys(message.removed)
        assert not set(stored) & set(removed)
        self.known[message.tier] |= set(stored)
        self.known[message.tier] -= set(removed)


def snapshot(log: KvLog, keys_max: int = 16384, now_s: float = 0.0) -> list[SnapshotPage]:
    pages = [log.page(SnapshotRequest(keys_max=keys_max), now_s)]
    while pages[-1].next_cursor:
        request = SnapshotRequest(pages[-1].next_cursor, pages[0].epoch, keys_max)
        pages.append(log.page(request, now_s))
    return pages


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "remove", "flush", "snapshot"]),
        st.sampled_from(TIERS),
        st.lists(st.integers(0, 12), max_size=4, unique=True),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(steps=STEPS, joins_at=st.integers(0, 40))
def test_a_reader_that_joins_at_any_moment_ends_where_the_owner_is(
    steps: list[tuple[str, str, list[int]]], joins_at: int
) -> None:
    owner, reader = Owner(), Reader()
    sent: list[KvEvents] = []  # published, and not yet read by the late reader
    joined = False
    for number, (verb, tier, numbers) in enumerate(steps):
        keys = [key(each) for each in numbers]
        if verb == "store":
            owner.store(tier, keys)
        elif verb == "remove":
            owner.remove(tier, keys)
        elif verb == "flush":
            sent += owner.log.take()
        else:
            snapshot(owner.log, keys_max=2)
        if number >= joins_at and not joined:
            # It subscribed a while ago: events may be older than the snapshot.
            reader.read(snapshot(owner.log, keys_max=3))
            joined = True
        owner.log.check()
    if not joined:
        reader.read(snapshot(owner.log))
    sent += owner.log.take()
    for message in sent:
        reader.apply(message)
    assert reader.known == owner.truth()


def test_only_the_last_word_on_a_key_goes_out() -> None:
    owner = Owner()
    owner.store("dram", [key(1), key(2)])
    owner.remove("dram", [key(1)])
    owner.remove("dram", [key(3)])
    owner.store("dram", [key(3)])
    (message,) = owner.log.take()
    assert unpack_keys(message.stored) == [key(2), key(3)]
    assert unpack_keys(message.removed) == [key(1)]
    assert owner.log.take() == []


def test_long_changes_go_out_in_bounded_messages_in_order() -> None:
    owner = Owner()
    many = [key(number) for number in range(10_000)]
    owner.store("hbm", many)
    messages = owner.log.take()
    assert [message.seq for message in messages] == [1, 2, 3]
    assert all(len(message.stored) <= 4096 * 16 for message in messages)
    assert [each for message in messages for each in unpack_keys(message.stored)] == many


def test_a_snapshot_stays_as_it_was_while_the_owner_changes() -> None:
    owner = Owner()
    owner.store("hbm", [key(number) for number in range(5)])
    owner.store("dram", [key(number) for number in range(3, 10)])
    before = owner.truth()
    first = owner.log.page(SnapshotRequest(keys_max=4), 0.0)
    owner.remove("hbm", [key(4)])
    owner.log.take()
    pages = [first]
    while pages[-1].next_cursor:
        pages.append(owner.log.page(SnapshotRequest(pages[-1].next_cursor, "e1", 4), 1.0))
    reader = Reader()
    reader.read(pages)
    assert reader.known == before
    assert [sum(len(packed) // 16 for packed in page.tiers.values()) for page in pages] == [4, 4, 4]
    assert len({page.seq for page in pages}) == 1


def test_an_empty_owner_has_one_empty_page() -> None:
    (page,) = snapshot(Owner().log)
    assert (page.tiers, page.seq, page.next_cursor) == ({}, 0, 0)


def test_copies_expire_are_shared_and_are_bounded_in_number() -> None:
    owner = Owner()
    owner.store("hbm", [key(number) for number in range(10)])
    first = owner.log.page(SnapshotRequest(keys_max=4), 0.0)
    again = owner.log.page(SnapshotRequest(keys_max=4), 0.0)
    assert again.next_cursor == first.next_cursor
    for number in range(100, 110):
        owner.store("hbm", [key(number)])
        owner.log.page(SnapshotRequest(keys_max=4), 1.0)
        owner.log.check()
    with pytest.raises(SnapshotExpired):
        owner.log.page(SnapshotRequest(first.next_cursor, "e1", 4), 1.0)
    last = owner.log.page(SnapshotRequest(keys_max=4), 1.0)
    with pytest.raises(SnapshotExpired):
        owner.log.page(SnapshotRequest(last.next_cursor, "e1", 4), 100.0)
    assert owner.log.stats()["cuts"] == 0


def test_a_page_of_an_earlier_life_is_refused() -> None:
    with pytest.raises(SnapshotExpired, match="anew"):
        Owner().log.page(SnapshotRequest(1 << 40, "e0"), 0.0)


def test_too_many_changes_leave_a_gap_instead_of_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_log_module, "PENDING_KEYS_MAX", 10)
    owner = Owner()
    owner.store("hbm", [key(number) for number in range(20)])
    owner.store("hbm", [key(99)])
    (message,) = owner.log.take()
    assert message.seq == 2  # 1 is the gap
    assert owner.log.stats()["gaps"] == 1
    reader = Reader()
    reader.read(snapshot(owner.log))
    assert reader.known == owner.truth()


def test_a_beacon_changes_nothing_but_the_number() -> None:
    owner = Owner()
    beacon = owner.log.beacon()
    assert (beacon.seq, beacon.stored, beacon.removed) == (1, b"", b"")


def test_a_burst_goes_out_in_bounded_messages_and_changes_between_them_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_log_module, "KEYS_PER_MESSAGE_MAX", 100)
    owner, reader = Owner(), Reader()
    owner.store("dram", map(key, range(250)))
    told = 0
    while (message := owner.log.take_next()) is not None:
        told += len(unpack_keys(message.stored)) + len(unpack_keys(message.removed))
        for packed, apply in (
            (message.stored, reader.known[message.tier].add),
            (message.removed, reader.known[message.tier].discard),
        ):
            for each in unpack_keys(packed):
                apply(each)
        if told == 100:
            owner.remove("dram", [key(0), key(240)])
    assert reader.known == owner.truth()
    assert told == 251


def test_what_is_too_much_to_tell_is_a_gap() -> None:
    owner = Owner()
    owner.store("dram", [key(1)])
    owner.log.relist()
    assert owner.log.take() == []
    assert owner.log.beacon().seq == 2
    assert owner.log.page(SnapshotRequest(), 0.0).tiers == {"dram": key(1)}
