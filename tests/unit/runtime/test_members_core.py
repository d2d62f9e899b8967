"""Who is on the mesh: suspect before dead."""

import pytest
from msgspec.structs import replace

from moonpool.messages.registry import Goodbye
from moonpool.runtime import Change, ChangeKind, MembersCore
from tests.support.registrations import make_heartbeat


def make_core() -> MembersCore:
    return MembersCore(suspect_after_s=3.0, forget_after_s=30.0)


def kinds(changes: list[Change]) -> list[str]:
    return [str(change.kind) for change in changes]


def test_a_first_beat_joins_and_later_ones_change_nothing() -> None:
    core = make_core()
    assert kinds(core.heartbeat(make_heartbeat(), 0.0)) == ["joined"]
    assert core.heartbeat(make_heartbeat(), 1.0) == []
    assert [member.id for member in core.of(["store"])] == ["n1"]
    assert core.of(["decode"]) == []
    core.check()


def test_a_change_of_state_is_told() -> None:
    core = make_core()
    core.heartbeat(make_heartbeat(state="starting"), 0.0)
    member = core.get("n1")
    assert member is not None
    assert not member.is_usable
    changes = core.heartbeat(make_heartbeat(state="ready"), 1.0)
    assert kinds(changes) == ["state"]
    assert changes[0].member.is_usable


def test_silence_makes_suspect_then_a_beat_brings_back() -> None:
    core = make_core()
    core.heartbeat(make_heartbeat(), 0.0)
    assert core.tick(2.9) == []
    assert kinds(core.tick(3.0)) == ["suspect"]
    assert core.tick(4.0) == []
    assert len(core) == 1
    assert not core.of(["store"])[0].is_usable
    assert kinds(core.heartbeat(make_heartbeat(), 5.0)) == ["back"]
    assert core.of(["store"])[0].is_usable


def test_only_long_silence_forgets() -> None:
    core = make_core()
    core.heartbeat(make_heartbeat(), 0.0)
    core.tick(3.0)
    assert kinds(core.tick(30.0)) == ["forgotten"]
    assert core.get("n1") is None


def test_doubt_makes_suspect_at_once_until_heard_again() -> None:
    core = make_core()
    core.heartbeat(make_heartbeat(), 0.0)
    assert kinds(core.doubt("n1")) == ["suspect"]
    assert core.doubt("n1") == []
    assert core.doubt("unknown") == []
    assert kinds(core.heartbeat(make_heartbeat(), 1.0)) == ["back"]


def test_a_new_epoch_replaces_the_old_one() -> None:
    core = make_core()
    core.heartbeat(make_heartbeat(), 0.0)
    changes = core.heartbeat(make_heartbeat(epoch="e2", started_unix_s=2.0), 1.0)
    assert kinds(changes) == ["left", "joined"]
    assert [change.member.registration.epoch for change in changes] == ["e1", "e2"]


def test_a_late_beat_of_an_older_epoch_is_ignored_while_the_newer_one_lives() -> None:
    core = make_core()
    core.heartbeat(make_heartbeat(epoch="e2", started_unix_s=2.0), 0.0)
    assert core.heartbeat(make_heartbeat(epoch="e1"), 1.0) == []
    core.doubt("n1")
    assert kinds(core.heartbeat(make_heartbeat(epoch="e1"), 2.0)) == ["left", "joined"]


def test_a_goodbye_counts_only_for_its_own_epoch() -> None:
    core = make_core()
    core.heartbeat(make_heartbeat(epoch="e2"), 0.0)
    assert core.goodbye(Goodbye("n1", "e1")) == []
    changes = core.goodbye(Goodbye("n1", "e2"))
    assert [change.kind for change in changes] == [ChangeKind.LEFT]
    assert core.goodbye(Goodbye("n1", "e2")) == []


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="must hold"):
        MembersCore(5.0, 5.0)


def test_a_company_is_known_once_all_of_it_was_heard_or_has_gone() -> None:
    core = make_core()
    assert not core.is_told("store")
    core.heartbeat(make_heartbeat("n1"), 0.0)
    assert not core.is_told("store")
    core.heartbeat(replace(make_heartbeat("n1"), company=["n1", "n2", "n3"]), 0.1)
    core.heartbeat(make_heartbeat("n2"), 0.2)
    core.check()
    assert not core.is_told("store")
    core.goodbye(Goodbye("n3", "e1"))
    assert core.is_told("store")
    assert not core.is_told("decode")


def test_who_was_named_and_stays_silent_is_waited_for_no_longer_than_until_it_is_suspect() -> None:
    core = make_core()
    core.heartbeat(replace(make_heartbeat("n1"), company=["n1", "n2"]), 0.0)
    core.tick(2.9)
    assert not core.is_told("store")
    core.tick(3.0)
    assert core.is_told("store")
    core.check()


def test_who_is_suspect_or_only_named_by_others_is_absent() -> None:
    core = make_core()
    beat = replace(make_heartbeat("n1"), company=["n1", "n2"])
    core.heartbeat(beat, 0.0)
    role = beat.registration.role
    assert core.absent(role) == ["n2"]
    core.heartbeat(make_heartbeat("n2"), 0.1)
    assert core.absent(role) == []
    core.doubt("n1")
    assert core.absent(role) == ["n1"]
    assert core.absent("another role") == []
