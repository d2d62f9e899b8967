"""What a node keeps for others while they are away."""

import pytest

from moonpool.kv import BlockKey
from moonpool.kv.named import named_key
from moonpool.messages import TenantId
from services.store.notes import ABSENT_MAX, Notes

ACME, OTHER = TenantId("acme"), TenantId("other")
BLOCK = BlockKey(bytes(range(16)))


def key(name: str, tenant: TenantId = ACME) -> BlockKey:
    return named_key(tenant, name)


def said(notes: Notes, node: str, now_s: float = 10.0) -> list[tuple[str, float, bytes]]:
    notes.check()
    return [(n.kind, n.age_s, n.key or n.prefix.encode()) for n in notes.page(node, 0, now_s).notes]


def test_nothing_is_noted_while_nobody_is_absent() -> None:
    notes = Notes()
    notes.written(ACME, key("a"), 1.0)
    notes.changed(ACME, [key("a")], 1.0)
    notes.cleared(ACME, 1.0)
    assert notes.stats() == {"notes": 0, "notes_absent": 0, "notes_folded": 0}


def test_what_is_put_or_removed_is_noted_for_who_is_absent_with_its_age() -> None:
    notes = Notes()
    notes.miss("n1")
    notes.written(ACME, key("a"), 4.0)
    notes.changed(ACME, [key("b")], 7.0)
    assert said(notes, "n1") == [("key", 6.0, key("a")), ("key", 3.0, key("b"))]
    assert said(notes, "n2") == []


def test_blocks_have_no_notes_for_they_are_the_same_everywhere() -> None:
    notes = Notes()
    notes.miss("n1")
    notes.written(ACME, BLOCK, 1.0)
    notes.changed(ACME, [BLOCK], 1.0)
    assert not notes.has("n1")


def test_the_last_change_of_a_name_counts_and_is_told_last() -> None:
    notes = Notes()
    notes.miss("n1")
    for name, at_s in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        notes.changed(ACME, [key(name)], at_s)
    assert said(notes, "n1") == [("key", 8.0, key("b")), ("key", 7.0, key("a"))]


def test_an_older_word_about_a_name_does_not_make_its_note_older() -> None:
    notes = Notes()
    notes.changed(ACME, [key("a")], 5.0, ["n1"])
    notes.changed(ACME, [key("a")], 2.0, ["n1"])
    assert said(notes, "n1") == [("key", 5.0, key("a"))]


def test_pages_go_on_where_the_last_one_ended_and_nothing_is_forgotten_before() -> None:
    notes = Notes()
    for name in "abc":
        notes.changed(ACME, [key(name)], 1.0, ["n1"])
    first = notes.page("n1", 0, 2.0, limit=2)
    assert notes.page("n1", 0, 2.0, limit=2) == first
    rest = notes.page("n1", first.until, 2.0, limit=2)
    assert [n.key for n in (*first.notes, *rest.notes)] == [key(name) for name in "abc"]
    assert notes.page("n1", rest.until, 2.0).notes == []
    assert not notes.has("n1")
    notes.check()


def test_a_change_between_two_pages_is_told_again() -> None:
    notes = Notes()
    notes.changed(ACME, [key("a")], 1.0, ["n1"])
    page = notes.page("n1", 0, 2.0)
    notes.changed(ACME, [key("a")], 3.0, ["n1"])
    assert [n.age_s for n in notes.page("n1", page.until, 4.0).notes] == [1.0]


def test_a_wipe_and_a_prefix_are_one_note_each() -> None:
    notes = Notes()
    notes.miss("n1")
    notes.cleared(ACME, 2.0)
    notes.cleared(OTHER, 3.0, "logs/")
    assert said(notes, "n1") == [("all", 8.0, b""), ("prefix", 7.0, b"logs/")]


def test_too_many_become_one_note_for_all_names_of_each_tenant() -> None:
    notes = Notes(notes_max=10)
    notes.cleared(OTHER, 1.0, "logs/", ["n1"])
    for n in range(10):
        notes.changed(ACME, [key(f"{n}")], float(n), ["n1"])
    assert said(notes, "n1") == [("prefix", 9.0, b"logs/"), ("named", 1.0, b"")]
    assert notes.stats()["notes_folded"] == 10


def test_of_several_absent_nodes_the_one_with_most_notes_is_told_less() -> None:
    notes = Notes(notes_max=10)
    notes.changed(ACME, [key("a")], 1.0, ["n1"])
    notes.changed(ACME, [key(f"{n}") for n in range(10)], 1.0, ["n2"])
    assert said(notes, "n1") == [("key", 9.0, key("a"))]
    assert said(notes, "n2") == [("named", 9.0, b"")]


def test_who_is_away_for_the_longest_is_forgotten_first() -> None:
    notes = Notes()
    for n in range(ABSENT_MAX + 1):
        notes.changed(ACME, [key("a")], 1.0, [f"n{n}"])
    assert "n0" not in notes.absent
    assert len(notes.absent) == ABSENT_MAX
    notes.check()


def test_what_was_put_here_after_a_change_is_newer() -> None:
    notes = Notes()
    notes.written(ACME, key("a"), 5.0)
    assert notes.is_newer(key("a"), 4.0)
    assert not notes.is_newer(key("a"), 6.0)
    assert not notes.is_newer(key("from an earlier life"), 0.0)


def test_of_our_own_names_only_the_latest_are_remembered() -> None:
    notes = Notes(written_max=2)
    for name in "aba":
        notes.written(ACME, key(name), 1.0)
    notes.written(ACME, key("c"), 2.0)
    assert [notes.is_newer(key(name), 0.0) for name in "abc"] == [True, False, True]
    notes.check()


@pytest.mark.parametrize(
    ("what", "is_void"), [(key("a"), True), ("named", True), ("all", True), (key("b"), False)]
)
def test_kept_objects_that_others_have_changed_are_void(
    what: BlockKey | str, *, is_void: bool
) -> None:
    notes = Notes()
    notes.void(ACME, what)
    assert notes.is_void(ACME, key("a")) is is_void
    assert not notes.is_void(OTHER, key("a", OTHER))
    assert notes.is_void(ACME, BLOCK) is (what == "all")
