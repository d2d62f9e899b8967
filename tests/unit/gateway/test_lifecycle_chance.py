"""Lives of requests by chance, each from a seed: any order of anything gives each token once."""

import random

from moonpool.messages.decode import ReserveReply
from moonpool.messages.errors import ErrorInfo
from moonpool.messages.plan import PlanReply
from moonpool.messages.prefill import SubmitReply
from moonpool.messages.tokens import TokenEvent
from services.gateway.core.effects import Effect, End
from services.gateway.core.lifecycle import Stage
from tests.unit.gateway.lives import (
    ANSWER,
    D1,
    D2,
    FULL,
    GONE,
    NOBODY,
    P1,
    P2,
    SLOW,
    W1,
    event,
    failed,
    given,
    make_life,
    plan,
    streaming,
)


def test_events_in_any_order_and_twice_give_each_token_once() -> None:
    for seed in range(50):
        shuffle = random.Random(seed)
        life = make_life()
        streaming(life)
        events = [event(i, finish="length" if i == 29 else "") for i in range(30)]
        events += shuffle.sample(events, 10)
        shuffle.shuffle(events)
        tokens: list[int] = []
        ends = 0
        for each in events:
            effects = life.token(each, 0.1)
            tokens += given(effects)
            ends += sum(isinstance(e, End) for e in effects)
        assert tokens == list(ANSWER), seed
        assert ends == 1, seed


def test_random_lives_give_every_token_once_or_end_with_an_error() -> None:
    for seed in range(300):
        _random_life(random.Random(seed), seed)


def _random_life(dice: random.Random, seed: int) -> None:
    """Instances refuse, die, fail, repeat and mix; old events come again at any time."""
    life = make_life(attempts=6)
    life.start()
    names = [(P1, D1), (P2, D2), (W1, W1), (P1, D2)]
    reserves: list[ReserveReply | ErrorInfo] = [GONE, FULL, *[ReserveReply()] * 6]
    submits: list[SubmitReply | ErrorInfo] = [GONE, SLOW, *[SubmitReply()] * 6]
    old: list[TokenEvent] = []
    tokens: list[int] = []
    ends: list[End] = []
    now_s = 0.0

    def take(effects: list[Effect]) -> None:
        tokens.extend(given(effects))
        ends.extend(e for e in effects if isinstance(e, End))

    for _ in range(500):
        now_s += dice.random() * 0.3
        if old and dice.random() < 0.3:
            take(life.token(dice.choice(old), now_s))
        if life.over:
            break
        if life.stage is Stage.PLAN:
            reply = PlanReply(refusal=NOBODY) if dice.random() < 0.1 else plan(*dice.choice(names))
            take(life.planned(reply, now_s))
        elif life.stage is Stage.RESERVE:
            take(life.reserved(dice.choice(reserves), now_s))
        elif life.stage is Stage.SUBMIT:
            take(life.submitted(dice.choice(submits), now_s))
        else:
            here = life.facts.plans[-1]
            index = len(life.text.output)
            roll = dice.random()
            if roll < 0.05:
                take(life.gone(here.decode, now_s))
            elif roll < 0.1:
                take(life.token(failed("preempted", here.decode, life.attempt), now_s))
            else:
                ahead = min(29, index + dice.choice([0, 0, 0, 1, 2]))
                count = dice.choice([1, 1, 2, 3])
                finish = "length" if ahead + count >= 30 else ""
                fresh = event(ahead, count, here.decode, life.attempt, finish)
                old.append(fresh)
                take(life.token(fresh, now_s))
            take(life.tick(now_s))
    assert tokens == list(ANSWER[: len(tokens)]), seed
    assert len(ends) == (1 if life.over else 0), seed
    if ends and ends[0].finish == "length":
        assert len(tokens) == 30, seed
