"""Whose prompt is next: classes, fair shares, dues. Pure."""

import random
from dataclasses import dataclass

from moonpool.instance.queueing import FairQueue
from moonpool.messages.ids import TenantId
from moonpool.messages.prefill import AGE_S


@dataclass
class Prompt:
    name: str
    tenant: TenantId
    level: int = 1
    weight: float = 1.0
    queued_at_s: float = 0.0
    patience_s: float = 0.0
    prompt_tokens: int = 100
    computed: int = 0
    tag: float = -1.0

    @property
    def due_s(self) -> float:
        return self.queued_at_s + self.patience_s


def make(name: str, tenant: str = "a", **fields: float) -> Prompt:
    return Prompt(name, TenantId(tenant), **fields)  # type: ignore[arg-type]


def drain(prompts: list[Prompt], now_s: float = 0.0) -> list[str]:
    """Names in the order in which a whole prompt at a time would be computed."""
    queue, left, order = FairQueue(), list(prompts), []
    while left:
        first = queue.in_turn(left, now_s)[0]
        queue.began(first)
        left.remove(first)
        order.append(first.name)
        queue.check()
    return order


def test_a_tenant_alone_is_served_in_the_order_in_which_its_prompts_are_due() -> None:
    assert drain([make("late", patience_s=9.0), make("soon", patience_s=1.0)]) == ["soon", "late"]


def test_a_tenant_with_one_prompt_waits_for_one_of_a_flood_and_not_for_all() -> None:
    flood = [make(f"a{i}", queued_at_s=i * 0.01) for i in range(50)]
    order = drain([*flood, make("b", "b", queued_at_s=1.0)], now_s=1.0)
    assert order.index("b") <= 1


def test_shares_follow_weights_in_tokens() -> None:
    prompts = [make(f"a{i}", "a", weight=3.0, queued_at_s=i) for i in range(40)]
    prompts += [make(f"b{i}", "b", weight=1.0, queued_at_s=i) for i in range(40)]
    first = drain(prompts)[:40]
    assert sum(name.startswith("a") for name in first) == 30


def test_a_tenant_with_long_prompts_gets_no_more_tokens_than_one_with_short_ones() -> None:
    prompts = [make(f"a{i}", "a", prompt_tokens=1000, queued_at_s=i) for i in range(10)]
    prompts += [make(f"b{i}", "b", prompt_tokens=100, queued_at_s=i) for i in range(100)]
    first = drain(prompts)[:55]
    assert 4 <= sum(name.startswith("a") for name in first) <= 6


def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    queue = FairQueue()
    for number in range(100):
        queue.began(make(f"a{number}", "a"))
    mine = [make(f"a{i}", "a") for i in range(10)]
    theirs = [make(f"b{i}", "b") for i in range(10)]
    order = [prompt.tenant for prompt in queue.in_turn([*mine, *theirs], 0.0)]
    assert 4 <= order[:10].count(TenantId("b")) <= 6


def test_a_higher_class_goes_first_whoever_asks() -> None:
    prompts = [make("low", level=2), make("normal"), make("high", "b", level=0, queued_at_s=5.0)]
    assert drain(prompts, now_s=5.0) == ["high", "normal", "low"]


def test_waiting_lifts_a_prompt_above_any_class() -> None:
    low = make("low", level=2)
    high = [make(f"high{i}", level=0, queued_at_s=3 * AGE_S) for i in range(5)]
    assert drain([*high, low], now_s=2 * AGE_S - 0.1)[0] != "low"
    for prompt in (*high, low):
        prompt.tag = -1.0
    assert drain([*high, low], now_s=3 * AGE_S + 0.1)[0] == "low"


def test_a_prompt_of_a_tenant_that_has_begun_goes_on_before_others_begin() -> None:
    queue = FairQueue()
    begun, other = make("a", "a", prompt_tokens=10_000), make("b", "b")
    queue.began(begun)
    begun.computed = 512
    assert [p.name for p in queue.in_turn([other, begun], 0.0)] == ["a", "b"]


def test_order_is_a_permutation_and_memory_is_bounded_whatever_comes() -> None:
    rng, queue = random.Random(7), FairQueue()
    for _ in range(6000):
        prompts = [
            make(str(i), f"t{rng.randrange(9000)}", level=rng.randrange(3), weight=rng.random() + 1)
            for i in range(rng.randrange(1, 4))
        ]
        ordered = queue.in_turn(prompts, rng.random() * 100)
        assert sorted(p.name for p in ordered) == sorted(p.name for p in prompts)
        queue.began(ordered[0])
    queue.check()
    assert queue.stats()["tenants"] > 0
