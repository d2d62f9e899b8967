"""The life of a request, by script: whatever comes in whatever order, no token twice, none lost."""

import numpy as np
import pytest

from moonpool.kv import block_keys
from moonpool.messages.decode import ReserveReply
from moonpool.messages.errors import ErrorInfo
from moonpool.messages.plan import PlanReply
from moonpool.messages.prefill import SubmitReply
from services.gateway.core.effects import (
    DECODE,
    PREFILL,
    AskPing,
    AskPlan,
    AskReplan,
    AskReserve,
    AskSubmit,
    Door,
    End,
    SendCancel,
)
from services.gateway.core.lifecycle import PLANS_MAX, Stage
from tests.unit.gateway.lives import (
    ANSWER,
    BLOCK_TOKENS,
    D1,
    D2,
    FULL,
    GONE,
    NOBODY,
    P1,
    P2,
    PROMPT,
    ROOT,
    SLOW,
    W1,
    event,
    failed,
    given,
    make_life,
    one,
    plan,
    streaming,
)


def test_an_answer_without_trouble() -> None:
    life = make_life()
    asked = one(life.start(), AskPlan).message
    assert (asked.prompt_tokens, asked.max_tokens, asked.attempt) == (20, 30, 0)
    reserve = one(life.planned(plan(), 1.0), AskReserve)
    assert (reserve.instance, reserve.message.prompt_tokens) == (D1, 20)
    reply = ReserveReply(decode="d1", blocks=(4, 5))
    submit = one(life.reserved(reply, 1.1), AskSubmit)
    assert submit.instance == P1
    assert submit.message.reservation == reply
    assert submit.message.deadline_s == pytest.approx(598.9)
    assert life.submitted(SubmitReply(), 1.2) == []
    assert given(life.token(event(0, source=P1), 2.0)) == [100]
    effects = life.token(event(1, 2, finish="stop"), 2.1)
    assert given(effects) == [101, 102]
    assert one(effects, End) == End("stop")
    assert not any(isinstance(e, SendCancel) for e in effects)
    assert life.over


def test_a_token_may_come_before_the_submit_is_answered() -> None:
    life = make_life()
    life.start()
    life.planned(plan(), 0.0)
    life.reserved(ReserveReply(decode="d1"), 0.0)
    assert given(life.token(event(0, source=P1), 0.1)) == [100]
    assert life.submitted(SLOW, 5.0) == []
    assert life.stage is Stage.STREAM


def test_events_of_an_older_attempt_or_of_a_stranger_are_void() -> None:
    life = make_life()
    streaming(life)
    life.token(event(0, source=P1), 0.1)
    life.token(failed("preempted", D1), 0.2)
    streaming(life, prefill=P2, decode=D2)
    assert life.token(event(1, source=D1), 0.3) == []
    assert life.token(event(1, source=D1, attempt=1), 0.3) == []
    assert given(life.token(event(1, source=D2, attempt=1), 0.3)) == [101]


def test_a_late_error_of_the_prefill_is_void_once_the_decode_has_spoken() -> None:
    life = make_life()
    streaming(life)
    life.token(event(0, source=P1), 0.1)
    life.token(event(1, source=D1), 0.2)
    assert life.token(failed("late", P1), 0.3) == []
    assert life.stage is Stage.STREAM


@pytest.mark.parametrize("info", [GONE, SLOW, FULL])
def test_a_decode_that_does_not_reserve_is_excluded(info: ErrorInfo) -> None:
    life = make_life()
    life.start()
    life.planned(plan(), 0.0)
    effects = life.reserved(info, 0.1)
    asked = one(effects, AskPlan)
    assert asked.message.exclude == (D1,)
    assert asked.message.attempt == 1
    cancels = [e for e in effects if isinstance(e, SendCancel)]
    if info is GONE:
        assert cancels == []
    else:
        assert cancels == [SendCancel(Door(DECODE, D1), 0, writer_stopped=True)]


@pytest.mark.parametrize(
    ("info", "stopped"), [(GONE, True), (SLOW, False), (SubmitReply(refusal=FULL), True)]
)
def test_a_prefill_that_does_not_take_it_is_excluded_and_the_place_is_freed(
    info: ErrorInfo | SubmitReply, stopped: bool
) -> None:
    life = make_life()
    life.start()
    life.planned(plan(), 0.0)
    life.reserved(ReserveReply(decode="d1"), 0.0)
    effects = life.submitted(info, 0.1)
    assert one(effects, AskPlan).message.exclude == (P1,)
    assert SendCancel(Door(DECODE, D1), 0, writer_stopped=stopped) in effects


@pytest.mark.parametrize("after", [0, 1, 2, 15, 29])
@pytest.mark.parametrize("how", ["error", "gone", "silent", "left"])
def test_an_instance_lost_after_any_token_is_left_and_the_answer_goes_on(
    after: int, how: str
) -> None:
    life = make_life()
    streaming(life)
    tokens: list[int] = []
    for index in range(after):
        tokens += given(life.token(event(index, source=P1 if index == 0 else D1), 0.0))
    door = Door(PREFILL, P1) if after == 0 else Door(DECODE, D1)
    if how == "error":
        effects = life.token(failed("preempted", door.instance), 0.1)
    elif how == "left":
        effects = life.gone(door.instance, 0.1)
    elif how == "gone":
        assert AskPing(door, 0) in life.tick(1.5)
        effects = life.ponged(door, 0, GONE, 1.6)
    else:
        effects = life.tick(21.0)
    asked = one(effects, AskPlan).message
    assert door.instance in asked.exclude
    assert (asked.prompt_tokens, asked.max_tokens) == (20 + after, 30 - after)
    submit = streaming(life, prefill=P2, decode=D2).message
    assert submit.output_start == 20
    whole = np.concatenate([PROMPT, np.array(ANSWER[:after], dtype="<i4")])
    assert submit.tokens == whole.tobytes()
    assert submit.keys == b"".join(block_keys(ROOT, whole, BLOCK_TOKENS))
    assert submit.sampling.max_tokens == 30
    effects = life.token(event(after, 30 - after, D2, attempt=1, finish="length"), 0.3)
    assert tokens + given(effects) == list(ANSWER)
    assert one(effects, End).finish == "length"


def test_the_decode_is_left_when_the_prefill_says_that_it_is_lost() -> None:
    life = make_life()
    streaming(life)
    life.token(event(0, source=P1), 0.1)
    asked = one(life.token(failed("decode_lost", P1), 0.2), AskPlan)
    assert asked.message.exclude == (D1,)


def test_an_alive_prefill_may_take_long_but_a_dead_one_may_not() -> None:
    life = make_life()
    streaming(life)
    now_s = 0.0
    for _ in range(200):
        now_s = max(life.wake_at_s(now_s), now_s + 0.01)
        for effect in life.tick(now_s):
            if isinstance(effect, AskReplan):
                assert life.replanned(NOBODY, 0, now_s) == []
                continue
            assert isinstance(effect, AskPing)
            assert life.ponged(effect.door, 0, None, now_s + 0.01) == []
    assert now_s > 100.0
    while life.stage is Stage.STREAM:
        for effect in life.tick(now_s):
            if isinstance(effect, AskPing):
                assert life.ponged(effect.door, 0, SLOW, now_s) == []
        left_s, now_s = now_s, life.wake_at_s(now_s)
    assert life.stage is Stage.PLAN
    assert left_s < 250.0


def test_a_gap_that_does_not_close_within_a_second_is_computed_again() -> None:
    life = make_life()
    streaming(life)
    life.token(event(0, source=P1), 0.0)
    assert life.token(event(2), 0.1) == []
    asked = one(life.tick(1.2), AskPlan)
    assert asked.message.exclude == ()
    assert asked.message.prompt_tokens == 21


def test_only_the_end_was_lost_when_all_tokens_are_there() -> None:
    life = make_life()
    streaming(life)
    life.token(event(0, source=P1), 0.0)
    life.token(event(1, 29), 0.1)
    assert one(life.gone(D1, 0.2), End) == End("length")


def test_while_an_answer_is_under_way_refusals_are_waited_out_for_a_time() -> None:
    life = make_life()
    streaming(life)
    life.token(event(0, source=P1), 0.0)
    effects = life.gone(D1, 1.0)
    now_s, plans = 1.0, 0
    while not any(isinstance(e, End) for e in effects):
        now_s += one(effects, AskPlan).delay_s + 0.5
        effects = life.planned(PlanReply(refusal=NOBODY), now_s)
        plans += 1
    assert plans > 5
    assert 21.0 <= now_s < 24.0
    error = one(effects, End).error
    assert error is not None
    assert (error.status, error.code) == (503, "instance_lost")


def test_before_any_work_a_refusal_is_told_at_once() -> None:
    life = make_life()
    life.start()
    error = one(life.planned(PlanReply(refusal=FULL), 0.0), End).error
    assert error is not None
    assert (error.status, error.code, error.retry_after_s) == (429, "kv_space", 3.0)


def test_tries_are_counted() -> None:
    life = make_life(attempts=2)
    for _ in range(1):
        streaming(life)
        life.token(failed("preempted", P1), 0.1)
    streaming(life, prefill=P2)
    error = one(life.token(failed("preempted", P2, attempt=1), 0.2), End).error
    assert error is not None
    assert error.status == 503


def test_plans_are_bounded_whatever_happens() -> None:
    life = make_life()
    effects = life.start()
    for _ in range(PLANS_MAX + 1):
        if any(isinstance(e, End) for e in effects):
            break
        life.planned(plan(), 0.0)
        effects = life.reserved(FULL, 0.0)
    assert life.over
    assert life.facts.attempts == life.limits.attempts_max


def test_the_deadline_ends_it_in_every_stage_and_frees_what_it_held() -> None:
    for stage in range(4):
        life = make_life(deadline_s=10.0)
        life.start()
        if stage > 0:
            life.planned(plan(), 0.0)
        if stage > 1:
            life.reserved(ReserveReply(decode="d1"), 0.0)
        if stage > 2:
            life.submitted(SubmitReply(), 0.0)
        assert life.wake_at_s(9.9) <= 10.0
        effects = life.tick(10.0)
        error = one(effects, End).error
        assert error is not None
        assert error.status == 504
        doors = {e.door for e in effects if isinstance(e, SendCancel)}
        assert (
            doors
            == [set(), {Door(DECODE, D1)}, *[{Door(DECODE, D1), Door(PREFILL, P1)}] * 2][stage]
        )


def test_a_client_that_goes_cancels_both_and_nothing_comes_after() -> None:
    life = make_life()
    streaming(life)
    effects = life.stop("cancelled")
    assert {e.door for e in effects if isinstance(e, SendCancel)} == {
        Door(PREFILL, P1),
        Door(DECODE, D1),
    }
    assert all(not e.writer_stopped for e in effects if isinstance(e, SendCancel))
    assert life.stop("cancelled") == []
    assert life.token(event(0), 0.1) == []
    assert life.tick(1000.0) == []
    assert life.gone(P1, 0.1) == []


def test_a_colocated_instance_is_spoken_to_at_one_door() -> None:
    life = make_life()
    submit = streaming(life, prefill=W1, decode=W1)
    assert submit.message.reservation is None
    assert {e.door for e in life.tick(1.1) if isinstance(e, AskPing)} == {Door(PREFILL, W1)}
    life.token(event(0, source=W1), 1.2)
    life.token(event(1, source=W1), 1.3)
    effects = life.stop("cancelled")
    assert [e.door for e in effects if isinstance(e, SendCancel)] == [Door(PREFILL, W1)]
