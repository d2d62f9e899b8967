import pytest

from bench.overload.arrivals import OUTPUT_TOKENS, PROMPT_TOKENS, poisson
from bench.overload.outcome import Answer, Promise, outcome, ratio_noise, settled

PROMISE = Promise(ttft_s=2.0, tbt_s=0.1)


def test_arrivals_come_at_the_rate_asked_for_and_the_same_for_the_same_seed() -> None:
    arrivals = poisson(50.0, 100.0, seed=3)
    assert arrivals == poisson(50.0, 100.0, seed=3)
    assert len(arrivals) == pytest.approx(5000, rel=0.06)
    assert all(0.0 < a.at_s < 100.0 for a in arrivals)
    assert all(PROMPT_TOKENS[0] <= len(a.prompt) <= PROMPT_TOKENS[1] for a in arrivals)
    assert all(OUTPUT_TOKENS[0] <= a.output_tokens <= OUTPUT_TOKENS[1] for a in arrivals)


def test_only_answers_that_keep_both_promises_are_goodput() -> None:
    found = outcome(
        [
            Answer(ttft_s=1.0, tbt_s=0.05),
            Answer(ttft_s=2.5, tbt_s=0.05),
            Answer(ttft_s=1.0, tbt_s=0.2),
            Answer(refused="ttft"),
            Answer(failed="left"),
        ],
        window_s=2.0,
        promise=PROMISE,
    )
    assert found.goodput_per_s == 0.5
    assert found.kept_of_answered == 0.25
    assert (found.refused, found.failed) == (1, 1)
    assert found.reasons == {"ttft": 1, "left": 1}


def test_a_window_without_answers_has_no_goodput() -> None:
    found = outcome([Answer(refused="tbt")], window_s=1.0, promise=PROMISE)
    assert (found.goodput_per_s, found.ttft_s_p90) == (0.0, 0.0)


def test_a_window_has_the_arrivals_its_rate_makes_and_counts_those_after_it_settled() -> None:
    arrivals = poisson(3.0, 20.0, 5)
    assert len(arrivals) == 60
    answers = [Answer(ttft_s=a.at_s) for a in arrivals]
    counted = settled(arrivals, answers, 4.0)
    assert counted == [a for a in answers if a.ttft_s >= 4.0]
    assert 0 < len(counted) < 60


def test_noise_is_the_standard_error_over_the_peak_and_none_without_rounds() -> None:
    assert ratio_noise([1.0, 3.0], 4.0) == pytest.approx(0.25)
    assert ratio_noise([2.0], 4.0) == ratio_noise([1.0, 3.0], 0.0) == 0.0
