"""Our policy: LRU until it has learned, then whoever is least likely to pay for its place goes."""

import random

from moonpool.cache import BlockHint, LruPolicy, OurPolicy
from moonpool.cache import ours as module


def make_taught() -> OurPolicy[object]:
    """Has seen prompts of 4 blocks that come back within 30 s, and prompts of 40 that never do."""
    policy: OurPolicy[object] = OurPolicy()
    now = 0.0
    for number in range(600):
        now += 1.0
        policy.insert(("long", number), 1, now, BlockHint(run_blocks=40))
        for part in range(8):
            policy.insert(("short", number, part), 1, now, BlockHint(run_blocks=4))
        if number >= 30:
            again = [("short", number - 30, part) for part in range(8)]
            policy.touch(again, now, BlockHint(run_blocks=4))
    while (key := policy.victim(now)) is not None:
        policy.remove(key)
    return policy


def test_it_is_lru_until_it_has_learned() -> None:
    ours, lru, rng = OurPolicy[int](), LruPolicy[int](), random.Random(3)
    for step in range(3000):
        key = rng.randrange(200)
        for policy in (ours, lru):
            if key in policy:
                policy.touch([key], float(step))
            else:
                policy.insert(key, 1, float(step))
            if len(policy) > 50:
                victim = policy.victim(float(step))
                assert victim is not None
                policy.remove(victim)
        assert ours.victim(float(step)) == lru.victim(float(step))


def test_it_learns_that_one_kind_of_prompt_never_returns() -> None:
    policy = make_taught()
    policy.insert("short", 1, 1000.0, BlockHint(run_blocks=4))
    policy.insert("long", 1, 1001.0, BlockHint(run_blocks=40))
    policy.insert("another", 1, 1002.0, BlockHint(run_blocks=4))
    assert policy.victim(1003.0) == "long"  # though it was used after "short"


def test_what_was_just_written_is_not_the_next_victim() -> None:
    policy = make_taught()
    policy.insert("short", 1, 1000.0, BlockHint(run_blocks=4))
    policy.insert("long", 1, 1001.0, BlockHint(run_blocks=40))
    assert policy.victim(1001.0) == "short"


def test_a_block_that_left_and_returns_is_known_again() -> None:
    policy: OurPolicy[str] = OurPolicy()
    policy.insert("a", 1, 0.0)
    policy.remove("a")
    policy.insert("a", 1, 30.0)
    policy.insert("b", 1, 30.0)
    assert policy._here["a"].uses == 2
    assert policy._here["b"].uses == 1


def test_of_a_run_used_together_the_tail_goes_first() -> None:
    policy: OurPolicy[str] = OurPolicy()
    for key in ("head", "middle", "tail", "other"):
        policy.insert(key, 1, 0.0)
    policy.touch(["head", "middle", "tail"], 1.0)
    policy.insert("newest", 1, 1.0)
    gone = []
    while (key := policy.victim(2.0)) is not None:
        policy.remove(key)
        gone.append(key)
    assert gone == ["other", "tail", "middle", "head", "newest"]


def test_memory_of_those_that_left_ends_with_the_horizon() -> None:
    policy: OurPolicy[int] = OurPolicy()
    for key in range(1000):
        policy.insert(key, 1, float(key))
        policy.remove(key)
    policy.insert(-1, 1, 9000.0)
    policy.remove(-1)
    assert len(policy._gone) == 1


def test_every_class_has_a_family_and_every_hint_a_class() -> None:
    kinds = {
        module._class_of(uses, wait, BlockHint(run, partial))
        for uses in range(1, 9)
        for wait in (0.0, 20.0, 100.0, 1000.0)
        for run in (0, 10, 50, 500)
        for partial in (False, True)
    }
    assert kinds == set(range(module._CLASSES))
    assert len(module._FAMILIES) == module._CLASSES
