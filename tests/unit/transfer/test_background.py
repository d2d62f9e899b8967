"""When slices of the background go."""

from itertools import pairwise

from moonpool.transfer.background import (
    PROMOTE_S,
    STUCK_S,
    WINDOW_BYTES,
    WINDOW_SLICES,
    Turns,
)

MIB = 1 << 20
HALF = WINDOW_BYTES // 2
Some = Turns[str, str]


def ways(path: str) -> int:
    return 2 if path.startswith("wide") else 1


def go(turns: Some, now_s: float = 0.0, foreground: int = 0) -> list[str]:
    """All that may go."""
    out = []
    while (taken := turns.take(now_s, foreground, ways)) is not None:
        out.append(taken[0])
    return out


def filled(turns: Some, path: str, count: int, size_bytes: int = HALF) -> Some:
    for i in range(count):
        turns.put(f"{path}{i}", path, size_bytes, 0.0)
    return turns


def test_a_path_carries_a_window_and_the_next_goes_as_one_ends() -> None:
    turns = filled(Turns(), "a", 5)
    assert go(turns) == ["a0", "a1"]
    turns.ended("a0")
    assert go(turns) == ["a2"]
    assert turns.waiting == 2


def test_what_goes_at_once_counts_like_the_rest() -> None:
    turns: Some = Turns()
    assert turns.go_at_once("x", "a", 1, WINDOW_BYTES, 0.0)
    assert not turns.go_at_once("y", "a", 1, 1, 0.0)
    assert turns.go_at_once("z", "b", 1, 1, 0.0)
    turns.put("y", "a", 1, 0.0)
    assert not turns.go_at_once("w", "b", 1, 1, 0.0)  # behind what waits
    turns.ended("x")
    assert go(turns) == ["y"]


def test_a_path_of_two_ways_carries_twice_as_much() -> None:
    assert len(go(filled(Turns(), "wide", 9))) == 4


def test_what_is_small_goes_in_larger_numbers_and_yet_bounded() -> None:
    assert len(go(filled(Turns(), "a", 99, 1024))) == WINDOW_SLICES


def test_one_that_is_larger_than_a_window_goes_alone() -> None:
    assert go(filled(Turns(), "a", 2, 2 * WINDOW_BYTES)) == ["a0"]


def test_paths_take_turns_and_a_full_one_holds_up_no_other() -> None:
    turns = filled(filled(Turns(), "a", 9), "b", 9)
    assert go(turns) == ["a0", "b0", "a1", "b1"]
    turns.ended("b0")
    assert go(turns) == ["b2"]


def test_nothing_goes_while_the_foreground_moves_but_one_now_and_then() -> None:
    turns = filled(filled(Turns(), "a", 9), "b", 9)
    assert go(turns, 0.0) == ["a0", "b0", "a1", "b1"]
    for item in ("a0", "b0", "a1", "b1"):
        turns.ended(item)
    went: list[tuple[int, str]] = []
    for tick in range(1, 100):
        now_s = tick / 100
        turns.moved(1, now_s)
        for item in go(turns, now_s, foreground=1):
            went.append((tick, item))
            turns.ended(item)
    assert [item for _, item in went[:3]] == ["a2", "b2", "a3"]
    assert all(later - earlier >= 10 for (earlier, _), (later, _) in pairwise(went))
    assert PROMOTE_S == 10 / 100
    assert go(turns, 0.99, foreground=0)


def test_what_has_waited_for_long_gets_a_fifth_of_the_bytes() -> None:
    turns = filled(Turns(), "a", 99, 2 * MIB)
    turns.moved(0, 0.0)
    went: list[str] = []
    for tick in range(1, 41):  # 1 MiB each, in no time
        turns.moved(MIB, PROMOTE_S)
        for item in go(turns, PROMOTE_S, foreground=1):
            went.append(item)
            turns.ended(item)
        assert len(went) == 1 + (tick - 1) // 8
    assert len(went) * 2 == 40 // 4


def test_what_is_new_waits_for_the_foreground_whatever_that_has_moved() -> None:
    turns = filled(Turns(), "a", 2)
    turns.moved(1000 * MIB, 0.0)
    assert go(turns, PROMOTE_S * 0.9, foreground=1) == []
    assert len(go(turns, PROMOTE_S, foreground=1)) == 1


def test_a_foreground_that_does_not_move_is_no_reason_to_wait() -> None:
    turns = filled(Turns(), "a", 3, 1024)
    turns.moved(1, 1.0)
    assert go(turns, 1.01, foreground=1) == ["a0"]
    assert go(turns, 1.05, foreground=1) == []
    assert go(turns, 1.0 + STUCK_S, foreground=1) == ["a1", "a2"]


def test_a_foreground_that_comes_late_is_not_taken_for_one_that_is_stuck() -> None:
    turns = filled(Turns(), "a", 9)
    assert go(turns, 50.0) == ["a0", "a1"]
    turns.moved(0, 90.0)
    turns.ended("a0")
    assert go(turns, 90.0 + STUCK_S / 2, foreground=1) == ["a2"]  # for its patience
    turns.ended("a1")
    assert go(turns, 90.0 + STUCK_S / 2, foreground=1) == []


def test_what_goes_at_once_tells_that_nothing_is_stuck() -> None:
    turns: Some = Turns()
    assert turns.go_at_once("x", "a", 1, 1, 50.0)
    turns.put("y", "a", 1, 50.01)
    assert go(turns, 50.02, foreground=1) == []


def test_the_wait_is_known_while_something_urgent_is_under_way() -> None:
    turns = filled(Turns(), "a", 2)
    turns.moved(1, 5.0)
    assert turns.take(5.0, 0, ways) is not None
    assert abs(turns.wait_s(5.02, 1) - (PROMOTE_S - 0.02)) < 1e-9
    assert turns.wait_s(5.02, 0) == 0


def test_what_nobody_wants_any_more_is_forgotten_wherever_it_is() -> None:
    turns = filled(Turns(), "a", 4)
    assert go(turns) == ["a0", "a1"]
    assert turns.flies("a0")
    turns.ended("a2")
    turns.ended("a0")
    turns.ended("a0")
    turns.ended("never heard of")
    assert not turns.flies("a0")
    assert go(turns) == ["a3"]
