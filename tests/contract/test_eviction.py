"""Every eviction policy keeps the same promises, whatever its order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.cache import POLICY_NAMES, BlockHint, EvictionPolicy, make_policy
from moonpool.kv import BlockKey, BlockPool
from moonpool.settings import StoreSettings, WorkerSettings

each_policy = pytest.mark.parametrize("name", POLICY_NAMES)


def make_filled(name: str, keys: int) -> EvictionPolicy[Any]:
    policy = make_policy(name)
    for key in range(keys):
        policy.insert(key, 4096, float(key))
    return policy


@each_policy
def test_an_empty_policy_has_no_victim(name: str) -> None:
    policy = make_policy(name)
    assert policy.victim(0.0) is None
    assert len(policy) == 0


@each_policy
def test_asking_twice_for_a_victim_gives_the_same(name: str) -> None:
    policy = make_filled(name, 5)
    assert policy.victim(9.0) == policy.victim(9.0)
    assert len(policy) == 5


@each_policy
def test_every_key_is_a_victim_once(name: str) -> None:
    policy = make_filled(name, 50)
    gone = []
    while (key := policy.victim(99.0)) is not None:
        policy.remove(key)
        assert key not in policy
        gone.append(key)
    assert sorted(gone) == list(range(50))


@each_policy
def test_inserting_twice_and_removing_the_unknown_are_errors(name: str) -> None:
    policy = make_filled(name, 1)
    with pytest.raises(KeyError):
        policy.insert(0, 4096, 1.0)
    with pytest.raises(KeyError):
        policy.remove("unknown")
    policy.remove(0)
    with pytest.raises(KeyError):
        policy.remove(0)


@each_policy
def test_touching_the_unknown_changes_nothing(name: str) -> None:
    policy = make_filled(name, 3)
    before = policy.victim(5.0)
    policy.touch(["unknown"], 5.0)
    policy.touch([], 5.0)
    assert policy.victim(5.0) == before
    assert len(policy) == 3


@each_policy
def test_a_key_just_written_is_not_the_next_victim(name: str) -> None:
    policy = make_filled(name, 20)
    policy.insert("new", 4096, 21.0)
    assert policy.victim(21.0) != "new"


@each_policy
@given(steps=st.lists(st.tuples(st.sampled_from("itrv"), st.integers(0, 9)), max_size=80))
def test_the_policy_holds_exactly_what_a_set_would(name: str, steps: list[tuple[str, int]]) -> None:
    policy, model = make_policy(name), set[int]()
    for now, (verb, key) in enumerate(steps):
        if verb == "i" and key not in model:
            policy.insert(key, 4096, float(now))
            model.add(key)
        elif verb == "t":
            policy.touch(range(key), float(now))
        elif verb == "r" and key in model:
            policy.remove(key)
            model.remove(key)
        victim = policy.victim(float(now))
        assert (victim in model) if model else (victim is None)
        assert len(policy) == len(model)
        assert all((each in policy) == (each in model) for each in range(10))


@each_policy
def test_hints_are_welcome_and_change_no_promise(name: str) -> None:
    policy = make_policy(name, blocks_max=8)
    for key in range(8):
        policy.insert(key, 4096, 0.0, BlockHint(run_blocks=key, partial=key == 7))
    policy.touch([0, 1], 1.0, BlockHint(run_blocks=2))
    assert policy.victim(2.0) in range(8)
    assert len(policy) == 8


@each_policy
def test_a_device_pool_works_with_it(name: str) -> None:
    pool = BlockPool(8, block_bytes=1, order=make_policy(name, 8))
    for step in range(300):
        keys = [BlockKey((step % 5 * 100 + at).to_bytes(16, "little")) for at in range(3)]
        held = pool.match(keys)
        pool.acquire(held, float(step))
        fresh = pool.allocate(3 - len(held), float(step))
        assert fresh is not None
        for key, block in zip(keys[len(held) :], fresh, strict=True):
            pool.publish(key, block)
        pool.release([*held, *fresh], float(step))
        pool.check()


def test_settings_name_every_policy() -> None:
    for settings in (StoreSettings, WorkerSettings):
        description = settings.model_fields["eviction"].description
        assert description is not None
        assert all(name in description for name in POLICY_NAMES)


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'belady' is none of lru"):
        make_policy("belady")
