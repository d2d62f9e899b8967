"""From the flags of `moonpool up` to a shape; and who starts again when."""

import argparse

import pytest

from services.cli.mesh.supervise import BACK_OFF_S, STEADY_AFTER_S, Lives
from services.cli.program import build_parser
from services.cli.verbs.up import counts_of


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["up", *arguments])


@pytest.mark.parametrize(
    ("arguments", "prefill", "decode", "colocated"),
    [
        ([], 1, 1, 0),
        (["--colocated", "1"], 0, 0, 1),
        (["--colocated", "1", "--prefill", "1"], 1, 1, 1),
        (["--prefill", "2", "--decode", "3"], 2, 3, 0),
    ],
)
def test_colocated_alone_is_the_small_mode(
    arguments: list[str], prefill: int, decode: int, colocated: int
) -> None:
    counts = counts_of(parsed(*arguments))
    assert (counts["prefill"], counts["decode"], counts["colocated"]) == (
        prefill,
        decode,
        colocated,
    )
    assert (counts["gateway"], counts["conductor"], counts["store"]) == (1, 1, 1)


def test_who_fails_in_a_row_waits_longer_each_time_up_to_a_limit() -> None:
    lives = Lives()
    waits = []
    for now_s in range(10):
        waits.append(lives.delay_s("decode-1", float(now_s)))
        lives.started("decode-1", float(now_s))
    assert waits == [*BACK_OFF_S, BACK_OFF_S[-1], BACK_OFF_S[-1], BACK_OFF_S[-1]]


def test_a_steady_life_forgives_earlier_failures() -> None:
    lives = Lives()
    for _ in range(3):
        lives.delay_s("decode-1", 0.0)
    lives.started("decode-1", 1.0)
    assert lives.delay_s("decode-1", 2.0 + STEADY_AFTER_S) == BACK_OFF_S[0]


def test_failures_of_one_do_not_delay_another() -> None:
    lives = Lives()
    lives.delay_s("decode-1", 0.0)
    assert lives.delay_s("decode-2", 0.0) == BACK_OFF_S[0]
