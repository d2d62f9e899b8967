"""Deadlines: never early, at most a step late."""

from hypothesis import given
from hypothesis import strategies as st

from services.store.deadlines import STEP_S, Deadlines


@given(st.lists(st.floats(0.0, 50.0), max_size=40), st.lists(st.floats(0.0, 3.0), max_size=40))
def test_items_are_due_never_early_and_at_most_a_step_late(
    times: list[float], steps: list[float]
) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for item, at in enumerate(times):
        deadlines.add(item, at)
    waiting, now = dict(enumerate(times)), 0.0
    for step in steps:
        now += step
        for item in deadlines.pop_due(now):
            assert waiting.pop(item) <= now
        assert all(at > now - STEP_S - 1e-9 for at in waiting.values())
        assert len(deadlines) == len(waiting)


def test_a_removed_item_is_never_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("a", 1.0)
    deadlines.add("b", 1.0)
    deadlines.remove("a", 1.0)
    assert deadlines.pop_due(5.0) == ["b"]
