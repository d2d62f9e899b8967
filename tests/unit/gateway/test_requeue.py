"""A prompt that waits is tried elsewhere when the world has changed, and only then."""

import asyncio

import pytest

from moonpool.messages.decode import ReserveReply
from moonpool.messages.ids import InstanceId
from moonpool.messages.plan import Plan, PlanReply
from moonpool.messages.prefill import SubmitReply
from services.gateway.core.effects import (
    DECODE,
    AskPlan,
    AskReplan,
    AskReserve,
    AskSubmit,
    AskWithdraw,
    Effect,
    SendCancel,
)
from services.gateway.core.lifecycle import REQUEUED, Life, Stage
from services.gateway.core.requeue import TRIES_MAX
from tests.support.until import until
from tests.unit.gateway.house import answer_tokens, open_house
from tests.unit.gateway.lives import D1, D2, NOBODY, P1, P2, W1, event, make_life, one, streaming
from tests.unit.gateway.scripts import Instance


def offer(predicted_s: float = 0.1, prefill: InstanceId = P2, decode: InstanceId = D2) -> PlanReply:
    return PlanReply(Plan(prefill, decode, predicted_ttft_s=predicted_s))


def waiting(predicted_s: float = 1.0) -> Life:
    """A prompt submitted at 0 with that prediction."""
    life = make_life()
    life.start()
    life.planned(offer(predicted_s, P1, D1), 0.0)
    life.reserved(ReserveReply(decode="d"), 0.0)
    life.submitted(SubmitReply(), 0.0)
    return life


def asked(effects: list[Effect]) -> bool:
    return any(isinstance(effect, AskReplan) for effect in effects)


def test_nothing_is_asked_before_the_prediction_is_far_past() -> None:
    life = waiting(predicted_s=4.0)
    assert not asked(life.tick(7.9))
    assert life.wake_at_s(7.9) <= 8.0
    replan = one(life.tick(8.0), AskReplan)
    assert replan.message.exclude == (P1,)
    assert replan.message.probe
    assert life.stage is Stage.STREAM


def test_a_better_place_is_taken_once_the_prompt_is_withdrawn() -> None:
    life = waiting()
    life.tick(4.0)
    withdraw = one(life.replanned(offer(0.5), 0, 4.0), AskWithdraw)
    assert withdraw.door.instance == P1
    effects = life.withdrawn(True, 0, 4.1)
    planned = one(effects, AskPlan).message
    assert (planned.exclude, planned.attempt, planned.probe) == ((P1,), 1, False)
    assert one(life.planned(offer(), 4.1), AskReserve).instance == D2
    told = [e for e in effects if isinstance(e, SendCancel) and e.door.side == DECODE]
    assert [(e.door.instance, e.writer_stopped) for e in told] == [(D1, True)]
    submit = one(life.reserved(ReserveReply(decode="d2"), 4.2), AskSubmit)
    assert (submit.instance, submit.message.attempt) == (P2, 1)
    assert life.facts.failures == [REQUEUED]
    assert life.token(event(0, source=P1, attempt=0), 4.3) == []


def test_a_place_that_is_gone_by_then_is_waited_for() -> None:
    life = waiting()
    life.tick(4.0)
    life.replanned(offer(0.5), 0, 4.0)
    life.withdrawn(True, 0, 4.1)
    again = one(life.planned(PlanReply(refusal=NOBODY), 4.2), AskPlan)
    assert again.message.exclude == ()
    assert again.delay_s > 0.0


def test_a_prompt_that_has_begun_stays() -> None:
    life = waiting()
    life.tick(4.0)
    life.replanned(offer(), 0, 4.0)
    assert life.withdrawn(False, 0, 4.1) == []
    assert (life.stage, life.attempt) == (Stage.STREAM, 0)
    assert life.token(event(0, source=P1), 4.2)


@pytest.mark.parametrize("reply", [offer(predicted_s=9.0), PlanReply(refusal=NOBODY), NOBODY])
def test_no_better_place_leaves_it_where_it_is(reply: PlanReply) -> None:
    life = waiting()
    life.tick(4.0)
    assert life.replanned(reply, 0, 4.0) == []


def test_a_first_token_ends_all_thought_of_moving() -> None:
    life = waiting()
    life.tick(4.0)
    life.token(event(0, source=P1), 4.0)
    assert life.replanned(offer(), 0, 4.1) == []
    assert not asked(life.tick(50.0))


def test_tries_are_bounded() -> None:
    life, now_s, asks = waiting(), 0.0, 0
    for _ in range(400):
        now_s += 0.5
        asks += asked(life.tick(now_s))
    assert asks == TRIES_MAX


def test_an_instance_in_doubt_is_left_at_once_for_any_other() -> None:
    life = waiting()
    assert life.doubted(W1, 0.1) == []
    assert asked(life.doubted(P1, 0.1))
    one(life.replanned(offer(30.0), 0, 0.2), AskWithdraw)
    assert life.stage is Stage.STREAM


def test_an_answer_to_an_older_attempt_changes_nothing() -> None:
    life = make_life()
    streaming(life)
    assert life.replanned(offer(), 3, 50.0) == []
    assert life.withdrawn(True, 0, 50.0) == []
    assert (life.stage, life.attempt) == (Stage.STREAM, 0)


async def test_a_request_that_waits_at_an_instance_in_doubt_moves_on() -> None:
    slow, decode = Instance("p1", "prefill"), Instance("d1", "decode")
    slow.stalls_before = 0
    async with open_house(slow, decode, answer=answer_tokens("moved")) as house:
        asking = asyncio.create_task(house.chat())
        await until(lambda: bool(slow.submits))
        other = Instance("p2", "prefill")
        await house.mesh.join(other)
        house.gateway.mesh.doubted("p1")
        answer = await asking
        assert answer.json()["choices"][0]["message"]["content"] == "moved"
        assert slow.cancels[0].only_waiting
        assert [submit.attempt for submit in other.submits] == [1]
        assert house.gateway.mesh.flights == set()
