"""What became of predicted first tokens, and what is allowed for since."""

import pytest

from moonpool.messages.ids import InstanceId, RequestId
from moonpool.messages.load import LoadReport, QueuedPrompt, request_tag
from services.conductor.punctual import ALLOWED_MAX, PRIOR_RATIOS, Punctuality


def make_report(*waiting: str, queued: int | None = None) -> LoadReport:
    prompts = [QueuedPrompt(100, 0, 0.0, request_tag(name)) for name in waiting]
    return LoadReport(
        "A", "e", 1, queued_requests=len(prompts) if queued is None else queued, prompts=prompts
    )


def came(punctual: Punctuality, ratio: float, count: int = 1) -> None:
    for number in range(count):
        punctual.planned(RequestId(f"r{number}"), "A", 0.0, 1.0, 1.5, is_try=False)
        punctual.reported(make_report(), ratio)
        punctual.check()


def test_it_starts_wide_and_narrows_as_first_tokens_come_in_time() -> None:
    punctual = Punctuality()
    began = punctual.allowed
    assert 1.2 < began <= max(PRIOR_RATIOS)
    seen = []
    for _ in range(30):
        came(punctual, 1.0)
        seen.append(punctual.allowed)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 1.0


def test_lateness_widens_it_up_to_a_bound_and_a_few_late_ones_do_not() -> None:
    punctual = Punctuality()
    came(punctual, 1.0, 100)
    came(punctual, 50.0, 5)
    assert punctual.allowed == 1.0
    came(punctual, 1.4, 40)
    assert punctual.allowed == pytest.approx(1.4)
    came(punctual, 50.0, 60)
    assert punctual.allowed == ALLOWED_MAX
    assert punctual.errors.quantile(0.5) > 0.2


def test_who_is_named_still_waits_and_of_more_than_are_named_nothing_is_known() -> None:
    punctual = Punctuality()
    punctual.planned(RequestId("a"), "A", 0.0, 1.0, 1.5, is_try=False)
    punctual.planned(RequestId("b"), "A", 0.0, 1.0, 1.5, is_try=False)
    punctual.reported(make_report(), 0.1)  # sent before they arrived there
    punctual.reported(make_report("a", "b"), 0.5)
    punctual.reported(make_report("a", queued=9), 0.6)
    assert punctual.stats() == {"first_tokens_due": 2, "first_tokens_noted": 0}
    punctual.reported(make_report("b"), 1.0)
    assert punctual.stats() == {"first_tokens_due": 1, "first_tokens_noted": 1}


def test_tries_and_what_comes_at_once_say_nothing_of_lateness() -> None:
    punctual = Punctuality()
    punctual.planned(RequestId("try"), "A", 0.0, 30.0, 2.0, is_try=True)
    punctual.planned(RequestId("quick"), "A", 0.0, 0.1, 2.0, is_try=False)
    assert punctual.tries("A") == 1
    punctual.reported(make_report(), 3.0)
    assert punctual.tries("A") == 0
    assert punctual.errors.samples == 0


def test_what_never_comes_is_forgotten() -> None:
    punctual = Punctuality()
    for name in ("refused", "silent", "gone"):
        punctual.planned(RequestId(name), name, 0.0, 1.0, 2.0, is_try=True)
    punctual.withdraw(RequestId("refused"), (InstanceId("refused"), InstanceId("nobody")))
    punctual.forget("gone")
    assert punctual.tries("silent") == 1
    punctual.expire(3600.0)
    assert punctual.stats()["first_tokens_due"] == 0
