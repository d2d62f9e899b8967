"""Instances that can do both do only what is short, and keep still otherwise."""

from itertools import pairwise

from services.conductor.roles import HOLD_S, REST_S, Dual, Order, RoleSwitcher, Sides

BUSY = Sides(prefills_needed=2.5, decodes_needed=0.5)
CALM = Sides(prefills_needed=0.5, decodes_needed=0.5)


def duals(*duties: str) -> list[Dual]:
    return [Dual(f"c{number}", duty, float(number)) for number, duty in enumerate(duties)]


def played(
    switcher: RoleSwitcher, sides: Sides, those: list[Dual], start_s: float, seconds: int
) -> list[tuple[float, Order]]:
    """Orders by time, each carried out at once."""
    found = []
    for second in range(seconds):
        order = switcher.decide(sides, those, start_s + second)
        if order:
            found.append((start_s + second, order))
            those[:] = [Dual(d.id, order.duty, d.busy) if d.id == order.id else d for d in those]
    return found


def test_the_short_side_gets_the_idlest_after_a_while() -> None:
    those = duals("both", "both", "both", "both")
    orders = played(RoleSwitcher(), BUSY, those, 0.0, 40)
    assert orders == [(HOLD_S, Order("c0", "prefill"))]


def test_changes_come_one_at_a_time_with_rest_between() -> None:
    those = duals("both", "both", "both", "both")
    orders = played(RoleSwitcher(), Sides(3.5, 0.5), those, 0.0, 300)
    times = [at for at, _ in orders]
    assert all(later - earlier >= REST_S for earlier, later in pairwise(times))
    assert [dual.duty for dual in those].count("prefill") == 2
    assert orders[-1][0] < 150.0


def test_a_short_burst_changes_nothing() -> None:
    switcher, those = RoleSwitcher(), duals("both", "both", "both")
    for start_s in range(0, 300, 30):
        assert not played(switcher, BUSY, those, float(start_s), 20)
        assert not played(switcher, CALM, those, start_s + 20.0, 10)


def test_all_do_both_again_when_nothing_is_short() -> None:
    switcher, those = RoleSwitcher(), duals("prefill", "both", "decode")
    played(switcher, CALM, those, 0.0, 400)
    assert {dual.duty for dual in those} == {"both"}


def test_the_way_back_needs_a_margin() -> None:
    those = duals("prefill", "both", "both")
    edge = Sides(prefills_needed=1.4, decodes_needed=0.5)
    assert not played(RoleSwitcher(), edge, those, 0.0, 300)


def test_the_other_side_is_never_emptied() -> None:
    those = duals("both", "both")
    both_short = Sides(prefills_needed=5.0, decodes_needed=0.9)
    assert not played(RoleSwitcher(), both_short, those, 0.0, 300)
    alone = duals("both")
    assert not played(RoleSwitcher(), Sides(3.0, 0.1), alone, 0.0, 300)


def test_load_that_swings_faster_than_it_holds_never_flaps() -> None:
    switcher, those, orders = RoleSwitcher(), duals(*["both"] * 6), []
    other = Sides(prefills_needed=0.5, decodes_needed=5.0)
    for start_s in range(0, 1200, 40):
        sides = BUSY if start_s % 80 else other
        orders += played(switcher, sides, those, float(start_s), 20)
        orders += played(switcher, CALM, those, start_s + 20.0, 20)
    assert not orders


def test_one_of_the_other_kind_comes_back_before_another_is_taken() -> None:
    those = duals("decode", "both", "both", "both")
    (first, *_) = played(RoleSwitcher(), BUSY, those, 0.0, 40)
    assert first[1] == Order("c0", "both")
