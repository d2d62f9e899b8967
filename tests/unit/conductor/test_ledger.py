"""What becomes of accepted requests, and how long answers are."""

import pytest

from moonpool.messages.ids import RequestId
from moonpool.messages.load import request_tag
from services.conductor.ledger import Entry, Ledger
from services.conductor.lengths import AnswerLengths


def make_lengths(tokens: int = 100, count: int = 400) -> AnswerLengths:
    lengths = AnswerLengths()
    for index in range(count):
        lengths.learn("t", tokens // 2 + index * tokens // count)
    lengths.still_running([])
    return lengths


def make_entry(first_s: float) -> Entry:
    return Entry("t", "D", first_s, 1000, 4096)


def test_a_batch_to_come_counts_who_joins_and_who_will_have_left() -> None:
    ledger, lengths = Ledger(), make_lengths()
    for name, first_s in (("old", -20.0), ("here", -1.0), ("coming", 2.0), ("later", 9.0)):
        ledger.add(RequestId(name), make_entry(first_s))
    expected = ledger.expected("D", 3.0, 0.0, 0.1, lengths)
    assert expected.now == 2.0
    assert 2.0 < expected.sequences < 3.0, "the old one is nearly over, the later one not there"
    assert expected.context_tokens > 1000 * expected.sequences
    ledger.check()


def test_who_ended_is_struck_out_and_who_still_waits_is_put_off() -> None:
    ledger, lengths = Ledger(), make_lengths()
    ledger.add(RequestId("a"), make_entry(1.0))
    ledger.add(RequestId("b"), make_entry(1.0))
    ledger.delayed(frozenset({request_tag("a")}), 5.0)
    assert ledger.expected("D", 4.0, 4.0, 0.1, lengths).now == 1.0
    ledger.strike(request_tag("b"))
    ledger.strike(request_tag("b"))
    assert len(ledger) == 1
    ledger.forget("D")
    assert len(ledger) == 0
    ledger.check()


def test_who_is_through_early_has_joined_and_those_to_come_are_known_in_order() -> None:
    ledger, lengths = Ledger(), make_lengths()
    for name, first_s in (("a", 9.0), ("b", 3.0), ("c", 6.0)):
        ledger.add(RequestId(name), make_entry(first_s))
    assert ledger.joining_after("D", 3.0) == [6.0, 9.0]
    assert ledger.joining_after("nobody", 0.0) == []
    ledger.joined([request_tag("a"), request_tag("never planned")], 1.0)
    assert ledger.joining_after("D", 3.0) == [6.0]
    assert ledger.expected("D", 2.0, 2.0, 0.1, lengths).now == 1.0
    ledger.joined([request_tag("a")], 5.0)
    assert ledger.expected("D", 2.0, 2.0, 0.1, lengths).now == 1.0, "it joined but once"


def test_lengths_are_learned_per_tenant_and_lent_to_newcomers() -> None:
    lengths = AnswerLengths()
    assert 0.0 < lengths.longer_than("new", 100) < 1.0
    for _ in range(300):
        lengths.learn("short", 20)
        lengths.learn("long", 900)
    lengths.still_running([])
    assert lengths.longer_than("short", 100) < 0.1
    assert lengths.longer_than("long", 100) > 0.9
    assert lengths.longer_than("new", 100) == pytest.approx(0.5, abs=0.1)
    falling = [lengths.longer_than("long", n) for n in range(0, 3000, 50)]
    assert falling == sorted(falling, reverse=True)
    assert lengths.mean_tokens() == pytest.approx(460)


def test_answers_that_still_run_say_that_answers_are_long() -> None:
    """Answers of 30 tokens ended first, as they do; most of those that began with them go on."""
    lengths = AnswerLengths()
    for _ in range(10):
        lengths.learn("t", 30)
    assert lengths.is_stale
    lengths.still_running([])
    alone = lengths.longer_than("t", 60)
    lengths.still_running([("t", 100.0 + n) for n in range(90)])
    assert not lengths.is_stale
    assert alone < 0.3 < 0.8 < lengths.longer_than("t", 60)
    assert lengths.longer_than("t", 2000) < 0.1, "beyond what was seen as before anything was"
    falling = [lengths.longer_than("t", n) for n in range(0, 6000, 50)]
    assert falling == sorted(falling, reverse=True)
    assert min(falling) > 0.0


def test_ages_of_answers_leave_out_who_waits_and_who_must_have_ended() -> None:
    ledger = Ledger()
    for name, first_s in (("waits", 5.0), ("runs", -3.0), ("over", -500.0)):
        ledger.add(RequestId(name), make_entry(first_s))
    assert dict(ledger.ages(0.0, lambda decode: 0.1)) == {"t": pytest.approx(30.0)}
    assert not list(ledger.ages(0.0, lambda decode: 0.0)), "of a decode that never reported"


def test_answers_to_long_prompts_may_be_shorter_and_few_samples_say_little() -> None:
    lengths = AnswerLengths()
    assert lengths.relative(100) == 1.0
    lengths.learn("t", 400, 100)
    lengths.learn("t", 100, 50_000)
    assert 0.9 < lengths.relative(50_000) < 1.0 < lengths.relative(100) < 1.1
    for _ in range(200):
        lengths.learn("t", 400, 100)
        lengths.learn("t", 100, 50_000)
    assert lengths.relative(50_000) < 0.6
    assert lengths.relative(100) > 1.4
    assert lengths.relative(4000) == 1.0
