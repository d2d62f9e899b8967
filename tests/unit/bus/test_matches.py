"""Which subjects a pattern takes: as NATS does it."""

import pytest

from moonpool.bus.memory import matches


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b.*", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        (">", "a", True),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c.d", True),
        ("ab", "a", False),
    ],
)
def test_patterns_match_as_nats_does(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
