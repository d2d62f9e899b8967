"""Stop strings over text in pieces: never a part of one is shown."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.core.stops import StopMatcher


def shown(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = "".join(map(matcher.push, pieces))
    return text + matcher.flush(), matcher.matched


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The match that is complete first; of those the one that starts first."""
    for end in range(len(text) + 1):
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        if ends:
            longest = max(ends, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_a_possible_beginning_is_held_back_until_it_is_none() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the E") == "the "
    assert matcher.push("N") == ""
    assert matcher.push("J") == "ENJ"
    assert matcher.push("EN") == ""
    assert matcher.flush() == "EN"


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("so END and more") == "so "
    assert matcher.push("even more") == ""
    assert matcher.flush() == ""
    assert matcher.matched == "END"


def test_a_repeating_beginning_is_found() -> None:
    assert shown(list("aaab"), ["aab"]) == ("a", "aab")


@settings(deadline=None, max_examples=300)
@given(
    st.text("ab1", max_size=24),
    st.lists(st.text("ab1", min_size=1, max_size=4), max_size=3),
    st.randoms(use_true_random=False),
)
def test_one_character_at_a_time_it_agrees_with_looking_at_every_end(
    text: str, stops: list[str], random: object
) -> None:
    assert shown(list(text), stops) == naive(text, stops)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.text("ab1", max_size=5), max_size=8),
    st.lists(st.text("ab1", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_in_any_pieces_no_stop_string_is_ever_shown(pieces: list[str], stops: list[str]) -> None:
    text, matched = shown(pieces, stops)
    whole = "".join(pieces)
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    assert (matched is None) == (text == whole)
