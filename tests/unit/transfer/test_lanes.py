"""Foreground first, and nobody starves."""

from moonpool.transfer.base import Priority
from moonpool.transfer.lanes import Lanes

FORE, BACK = Priority.FOREGROUND, Priority.BACKGROUND


def test_foreground_goes_first_in_order() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.put("b1", BACK, 0.0)
    lanes.put("f1", FORE, 0.0)
    lanes.put("f2", FORE, 0.0)
    assert [lanes.take(0.0) for _ in range(4)] == ["f1", "f2", "b1", None]


def test_background_that_waited_long_gets_one_turn_in_five() -> None:
    lanes: Lanes[str] = Lanes(promote_after_s=0.1, foreground_per_promoted=4)
    for i in range(3):
        lanes.put(f"b{i}", BACK, 0.0)
    for i in range(12):
        lanes.put(f"f{i}", FORE, 0.0)
    taken = [lanes.take(1.0) or "" for _ in range(15)]
    assert [i for i, name in enumerate(taken) if name.startswith("b")] == [0, 5, 10]


def test_background_that_is_young_waits() -> None:
    lanes: Lanes[str] = Lanes(promote_after_s=0.1)
    lanes.put("b", BACK, 0.95)
    lanes.put("f", FORE, 1.0)
    assert lanes.take(1.0) == "f"


def test_what_is_put_back_comes_next() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.put("f1", FORE, 0.0)
    lanes.put("f2", FORE, 0.0)
    first = lanes.take(0.0)
    assert first is not None
    lanes.put_back(first, FORE, 0.0)
    assert lanes.take(0.0) == "f1"


def test_drain_empties_both_lanes() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.put("b", BACK, 0.0)
    lanes.put("f", FORE, 0.0)
    assert lanes.drain() == ["f", "b"]
    assert len(lanes) == 0
    assert lanes.take(9.0) is None
